// Buttons that copy the text of a block.

export function copied(button, text) {
  const label = button.textContent;
  const put = navigator.clipboard && isSecureContext ? navigator.clipboard.writeText(text) : Promise.reject(new Error());
  return put.catch(() => byHand(text)).then(() => {
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1200);
  });
}

function byHand(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
