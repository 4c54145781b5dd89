// The cluster's history as the process keeps it, asked for in parts: each refresh brings what is new.

import { get } from "../api.js";

/** Return `before` (null at first) with the samples since.  Raises ApiError. */
export async function mergeHistory(before, signal) {
  const last = before?.samples.at(-1)?.time_ms;
  const answer = await get("history", last ? { after: last } : {}, signal);
  const oldest = (answer.samples.at(-1)?.time_ms ?? last ?? 0) - answer.kept_ms;
  const samples = [...(before?.samples ?? []), ...answer.samples].filter(({ time_ms: at }) => at > oldest);
  return { ...answer, samples };
}
