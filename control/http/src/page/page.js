"use strict";
// Shows what the server tells. The server has escaped every text, and the content security policy allows no other script.
const live = document.getElementById("live");
const name = document.title;
const said = document.getElementById("said");
const isInUse = () => {
  const selection = getSelection();
  const selected = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  return selected || live.contains(document.activeElement);
};
const say = (text) => { if (said.textContent !== text) said.textContent = text; };
const events = new EventSource("/events");
events.onmessage = (event) => {
  if (isInUse()) return say("held while something in the page is selected");
  live.innerHTML = event.data;
  document.title = live.querySelector("dd, p").textContent + " – " + name;
  say("live");
};
events.onerror = () => say(events.readyState === EventSource.CLOSED
  ? "not live: reload the page" : "not live: no answer; trying again");
