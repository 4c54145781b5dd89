// Elements, and a patch that makes the page on the screen equal to a new tree.
//
// Views build whole trees; `patch` changes only the differences, so focus, selection, scroll positions and typed text
// survive a refresh.  Texts become text nodes only: no record and no name can become markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "indeterminate"]);

/** Return an element.  `props` are attributes, `on…` handlers, value and checked; null and false are left out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Return an SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (PROPERTIES.has(name)) (element.bmqProperties ??= {})[name] = element[name] = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  // Set again: a select has its options only now.
  if (element.bmqProperties && "value" in element.bmqProperties) element.value = element.bmqProperties.value;
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

function listen(element, type, handler) {
  element.bmqHandlers ??= {};
  if (!(type in element.bmqHandlers)) element.addEventListener(type, dispatch);
  element.bmqHandlers[type] = handler;
}

function dispatch(event) {
  return event.currentTarget.bmqHandlers[event.type]?.(event);
}

/** Make the children of `live` equal to those of `next`. */
export function patchChildren(live, next) {
  const wantedKeys = new Set();
  for (const child of next.childNodes) if (keyOf(child)) wantedKeys.add(keyOf(child));
  const keyed = new Map();
  for (const child of live.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = live.firstChild;
  for (const wanted of [...next.childNodes]) {
    while (at && keyOf(at) && !wantedKeys.has(keyOf(at))) at = removed(at);
    const key = keyOf(wanted);
    const match = key ? keyed.get(key) : at;
    if (match && isSame(match, wanted)) {
      if (match === at) at = at.nextSibling;
      else live.insertBefore(match, at);
      patch(match, wanted);
    } else {
      live.insertBefore(wanted, at);
    }
  }
  while (at) at = removed(at);
}

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function isSame(live, wanted) {
  return live.nodeType === wanted.nodeType && live.nodeName === wanted.nodeName && keyOf(live) === keyOf(wanted);
}

function patch(live, next) {
  if (live.nodeType !== Node.ELEMENT_NODE) {
    if (live.nodeValue !== next.nodeValue) live.nodeValue = next.nodeValue;
    return;
  }
  for (const { name } of [...live.attributes]) {
    if (!next.hasAttribute(name) && !(name === "open" && live.nodeName === "DETAILS")) live.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (live.getAttribute(name) === value) continue;
    // The page's Content-Security-Policy forbids style attributes, but not setting styles by script.
    if (name === "style") live.style.cssText = next.style.cssText;
    else live.setAttribute(name, value);
  }
  live.bmqHandlers = live.bmqHandlers ?? {};
  for (const type of Object.keys(live.bmqHandlers)) live.bmqHandlers[type] = next.bmqHandlers?.[type];
  for (const [type, handler] of Object.entries(next.bmqHandlers ?? {})) listen(live, type, handler);
  patchChildren(live, next);
  for (const [name, value] of Object.entries(next.bmqProperties ?? {})) {
    // A value that is being typed is not replaced.
    if (live[name] !== value && (live !== document.activeElement || name !== "value")) live[name] = value;
  }
}
