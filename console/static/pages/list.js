// Lists that the process searches, sorts and cuts: a page loads only the rows that it shows, which its address describes.

import { get } from "../api.js";
import { nextOrder, orderOf, pager, searchField, table } from "../widgets.js";

const TYPED_MS = 250; // a search begins once nothing has been typed for so long

/** Return the number of the page in an address, from 0. */
export function pageOf(query) {
  const number = Math.floor(Number(query.get("page") ?? 0));
  return number > 0 && number < 1e6 ? number : 0;
}

/** Return the query in the address: {search, sort, skip, limit}.  An unknown order becomes the list's default. */
export function listQuery(app, { size, columns, sort }) {
  const wanted = app.query.get("sort") ?? "";
  const isKnown = columns.some((each) => each.sort && each.name === orderOf(wanted, sort).by);
  return { search: app.query.get("search") ?? "", sort: isKnown && wanted ? wanted : sort, skip: pageOf(app.query) * size, limit: size };
}

/** Load a page of the list `name` from `where`.  Returns {items, total, answer, query}.  Raises ApiError. */
export async function loadList(where, name, query, signal) {
  let answer = await get(where, query, signal);
  if (answer[name].length === 0 && answer.total > 0 && query.skip > 0) {
    // The page is past the end, since the list has become shorter or the address is from another one: take the last page.
    query = { ...query, skip: Math.floor((answer.total - 1) / query.limit) * query.limit };
    answer = await get(where, query, signal);
  }
  return { items: answer[name], total: answer.total, answer, query };
}

/** Return the search field of the list. */
export function listSearch(app, label) {
  return searchField(label, app.query.get("search") ?? "", (text) => app.ask({ search: text, page: null }, TYPED_MS));
}

/** Return the table of a page of the list, and the buttons for the other pages. */
export function listTable(app, { items, total, query }, { label, columns, keyOf, what }) {
  const order = orderOf(query.sort);
  return [
    table({ label, rows: items, columns, keyOf, order, onsort: (name) => app.ask({ sort: nextOrder(order, name), page: null }) }),
    pager({ page: Math.floor(query.skip / query.limit), size: query.limit, total, go: (number) => app.ask({ page: number || null }), what }),
  ];
}
