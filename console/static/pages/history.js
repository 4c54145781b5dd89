// The cluster's history.  Each refresh loads only the samples since the last one.

import { get } from "../api.js";

/** Return `before` (null at first) with the samples since then.  Raises ApiError. */
export async function mergeHistory(before, signal) {
  const last = before?.samples.at(-1)?.time_ms;
  const added = await get("history", last ? { after: last } : {}, signal);
  const oldest = (added.samples.at(-1)?.time_ms ?? last ?? 0) - added.kept_ms;
  const samples = [...(before?.samples ?? []), ...added.samples].filter(({ time_ms: at }) => at > oldest);
  return { ...added, samples };
}
