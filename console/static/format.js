// Texts of numbers, sizes and times.  An unknown value, null, is a dash.

const DASH = "–";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function isKnown(value) {
  return value !== null && value !== undefined;
}

export function count(value) {
  return isKnown(value) ? whole.format(value) : DASH;
}

/** Return a number in few characters: 1.2K, 34M. */
export function short(value) {
  if (!isKnown(value)) return DASH;
  return value < 10 && value % 1 !== 0 ? value.toFixed(1) : compact.format(value);
}

export function bytes(value) {
  if (!isKnown(value)) return DASH;
  let unit = 0;
  let amount = value;
  while (amount >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || amount >= 100 ? 0 : 1;
  return `${amount.toFixed(digits)} ${UNITS[unit]}`;
}

export function bytesPerSecond(value) {
  return isKnown(value) ? `${bytes(value)}/s` : DASH;
}

export function perSecond(value) {
  return isKnown(value) ? `${short(value)}/s` : DASH;
}

export function milliseconds(value) {
  if (!isKnown(value)) return DASH;
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value < 10 ? value.toFixed(1) : whole.format(value)} ms`;
}

export function percent(share) {
  return isKnown(share) ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %` : DASH;
}

/** Return "1 topic", "2 topics". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function time(ms) {
  if (!isKnown(ms) || ms < 0) return DASH;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(ms)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function clock(ms) {
  const date = new Date(ms);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((each) => String(each).padStart(2, "0")).join(":");
}

/** Return a span in one unit: "12 s", "3 min", "2 h", "5 d". */
export function span(ms) {
  const seconds = ms / 1000;
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
