"use strict";
// Each page keeps what was done in `state`, for the checks, and calls `finish` when it is through with the agent.
const state = {};
let over = false;

function finish() {
  over = true;
  document.body.classList.add("over");
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
