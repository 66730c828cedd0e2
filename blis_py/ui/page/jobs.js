// Requests to the server: one at a time, and the latest wins.

const token = new URLSearchParams(location.search).get("token") ?? "";
const tab = crypto.randomUUID();
const headers = { "content-type": "application/json", "x-blis-token": token };

export async function job(kind, body = {}) {
  let answer;
  try {
    const response = await fetch("/api/job", { method: "POST", headers, body: JSON.stringify({ kind, tab, ...body }) });
    answer = response.status === 403 ? { failed: await response.text() } : await response.json();
  } catch {
    answer = { failed: "the server does not answer: is blis ui still running?" };
  }
  return answer;
}

export async function* messages(path, body, signal) {
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify({ tab, ...body }), signal });
  let rest = "";
  for (const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

// Runs `work` on the latest of what was wanted; what came in between is skipped.
export class Latest {
  constructor(work) {
    this.work = work;
    this.wanted = undefined;
    this.running = false;
  }

  async want(what) {
    this.wanted = what;
    if (this.running) return;
    this.running = true;
    while (this.wanted !== undefined) {
      const now = this.wanted;
      this.wanted = undefined;
      await this.work(now, () => this.wanted === undefined);
    }
    this.running = false;
  }
}

addEventListener("pagehide", () => {
  fetch("/api/job", { method: "POST", headers, body: JSON.stringify({ kind: "leave", tab }), keepalive: true }).catch(() => {});
});
