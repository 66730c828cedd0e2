// Linear and logarithmic scales, and their ticks.

export function scale(low, high, from, to, log) {
  if (log) {
    low = Math.log10(low);
    high = Math.log10(high);
  }
  const span = high - low || 1;
  const at = (value) => from + (((log ? Math.log10(Math.max(value, 1e-12)) : value) - low) / span) * (to - from);
  const back = (place) => {
    const value = low + ((place - from) / (to - from)) * span;
    return log ? 10 ** value : value;
  };
  return { at, back, low: log ? 10 ** low : low, high: log ? 10 ** high : high, log };
}

export function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

export function logTicks(low, high, wanted) {
  const found = [];
  const decades = Math.log10(high) - Math.log10(low);
  const each = decades > wanted ? [1] : decades > wanted / 3 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of each) {
      const value = Number((factor * 10 ** power).toPrecision(6));
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length > 1 ? found : ticks(low, high, wanted).filter((value) => value > 0);
}
