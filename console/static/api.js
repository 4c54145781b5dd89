// Client of the HTTP API of the process that served this page.

const TIMEOUT_MS = 30_000;
const UNAUTHENTICATED = 401;
/** The session's text, which each request has: other sites' pages do not know it.  Empty without a session. */
let csrf = "";
let onLost = () => {};

/** Use the text of a session from now on. */
export function useSession(text) {
  csrf = text ?? "";
}

/** Call `lost` whenever the process asks for a log-in. */
export function whenLost(lost) {
  onLost = lost;
}

/** A refusal or a failure.  `message` has the reason, for an operator; `status` is 0 if there was no response. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Return the path of the API with each value escaped: path`topics/${name}`. */
export function path(parts, ...values) {
  return parts.reduce((text, part, index) => text + encodeURIComponent(values[index - 1]) + part);
}

/** Return the path of the API for a group, named by a parameter: browsers resolve "." and ".." in paths. */
export function groupPath(id, part = "") {
  return `group${part}?id=${encodeURIComponent(id)}`;
}

/** Return the path of the API for a transactional id, named by a parameter for the same reason. */
export function transactionPath(id) {
  return `transaction?id=${encodeURIComponent(id)}`;
}

/** Send a GET and return the JSON of the response.  Raises ApiError. */
export function get(where, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return send("GET", text ? `${where}${where.includes("?") ? "&" : "?"}${text}` : where, undefined, signal);
}

/** Send a POST, PUT or DELETE and return the JSON of the response.  Raises ApiError. */
export function act(method, where, body = undefined) {
  return send(method, where, body);
}

async function send(method, where, body, signal) {
  const url = where.startsWith("/") ? where.slice(1) : `api/v1/${where}`;
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const init = { method, signal: signal ? AbortSignal.any([signal, timeout]) : timeout, redirect: "error", headers: { "X-CSRF-Token": csrf } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  let response;
  let text;
  try {
    response = await fetch(url, init);
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    const why = timeout.aborted ? `no response within ${TIMEOUT_MS / 1000} s` : "the connection failed";
    throw new ApiError(0, "unreachable", `the process at ${location.host} cannot be reached: ${why}`);
  }
  let facts;
  try {
    facts = JSON.parse(text);
  } catch {
    throw new ApiError(response.status, "no_json", `${location.host} responded ${response.status} without JSON`);
  }
  if (response.status === UNAUTHENTICATED) onLost();
  if (!response.ok) throw new ApiError(response.status, facts.error ?? "error", facts.message ?? response.statusText);
  return facts;
}
