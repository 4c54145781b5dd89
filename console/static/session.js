// The user of the console: the log-in, the log-out, and what the user may do.

import { ApiError, act, get, useSession } from "./api.js";
import { field } from "./dialog.js";
import { h } from "./dom.js";
import { button } from "./widgets.js";

const RIGHTS_MS = 30_000; // rights are asked for again after this
const UNAUTHENTICATED = 401;

/** The user as the process knows it, {principal, cluster, ...}; null until it has said so. */
let me = null;
let askedAt = 0;
const known = new Map(); // rights by topic and group, with the time of the response

/** Return the user; null if it is not known. */
export function user() {
  return me;
}

/** Load the user again if that was long ago.  Returns false if a log-in is needed. */
export async function loadUser() {
  if (me !== null && Date.now() - askedAt < RIGHTS_MS) return true;
  try {
    take(await get("me"));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return error.status !== UNAUTHENTICATED; // else the page itself shows what is wrong
  }
  return true;
}

function take(facts) {
  me = facts;
  askedAt = Date.now();
  useSession(facts.csrf);
}

/** Forget the user: the session is over. */
export function forgetUser() {
  me = null;
  known.clear();
  useSession("");
}

/** Return whether the user may do `operation` to the cluster; true while that is not known. */
export function mayCluster(operation) {
  return me === null || me.cluster.includes(operation);
}

/** Return whether the user may create some topic. */
export function mayCreateTopics() {
  return me === null || me.may_create_topics;
}

/** Load the operations that the user may do to a "topic" or "group". */
export async function rightsOn(kind, name, signal) {
  const key = `${kind} ${name}`;
  const found = known.get(key);
  if (found && Date.now() - found.at < RIGHTS_MS) return found.rights;
  const rights = (await get("me", { [kind]: name }, signal))[kind];
  known.set(key, { rights, at: Date.now() });
  return rights;
}

export async function logOut() {
  await act("DELETE", "login");
  forgetUser();
}

/** Return the page of the log-in: {load, view}; `done` is called once the user has logged in. */
export function loginPage(done, redraw) {
  const state = { user: "", password: "", token: "", byToken: false };
  let error = null;
  let isBusy = false;
  const submit = async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    error = null;
    redraw();
    try {
      take(await act("POST", "login", state.byToken ? { token: state.token } : { user: state.user, password: state.password }));
      done();
    } catch (failed) {
      error = failed;
      state.password = "";
    } finally {
      isBusy = false;
      redraw();
    }
  };
  return {
    title: "Log in",
    section: "",
    load: async (signal) => {
      const { schemes } = await get("login", {}, signal);
      if (!schemes.includes("basic")) state.byToken = true;
      return { schemes };
    },
    view: ({ schemes }) =>
      h(
        "form",
        { class: "login card", onsubmit: submit },
        h("h1", { tabindex: "-1" }, "Log in"),
        error ? h("div", { class: "notice bad", role: "alert" }, h("p", null, error.message || String(error))) : null,
        state.byToken
          ? field(state, "token", "Access token", { kind: "password", required: true })
          : [field(state, "user", "User", { required: true, autocomplete: "username" }), field(state, "password", "Password", { kind: "password", required: true, autocomplete: "current-password" })],
        h("button", { type: "submit", class: "button primary", disabled: isBusy }, isBusy ? "Checking…" : "Log in"),
        schemes.length > 1 ? button(state.byToken ? "Use a password" : "Use a token", () => ((state.byToken = !state.byToken), (error = null), redraw()), "quiet") : null,
      ),
  };
}
