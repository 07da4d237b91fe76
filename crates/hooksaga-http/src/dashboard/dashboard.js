// Makes the pages pleasant: refreshes what changes, counts times on, copies, and focuses the search. Every page works
// without it.
"use strict";
(() => {
  const every = 2000;
  const root = document.documentElement;
  const skew = root.dataset.now ? Number(root.dataset.now) - Date.now() : 0;

  // The link to the portal carries its token in the fragment, which no server sees: it is posted once. Where the portal is
  // open already, a link with another token changes the fragment only, and loads nothing.
  const enter = () => {
    if (root.dataset.site !== "portal" || !location.hash.startsWith("#token=")) return false;
    let token = location.hash.slice("#token=".length);
    try { token = decodeURIComponent(token); } catch { /* Not a token that was ever given out: the server says so. */ }
    history.replaceState(null, "", location.pathname + location.search);
    const form = document.createElement("form");
    form.method = "post";
    form.action = "/portal/sign-in";
    const here = new URLSearchParams(location.search).get("next") || location.pathname + location.search;
    for (const [name, value] of [["key", token], ["next", here]]) {
      const input = document.createElement("input");
      input.type = "hidden";
      input.name = name;
      input.value = value;
      form.append(input);
    }
    document.body.append(form);
    form.submit();
    return true;
  };
  addEventListener("hashchange", enter);
  if (enter()) return;
  // A page between a link of another site and the page that it leads to.
  const onward = document.querySelector("a[data-onward]");
  if (onward) return location.replace(onward.href);

  // A form's result has an address of its own: loading it again does not send the form again.
  const own = document.querySelector("#part[data-at]");
  if (own && own.dataset.at !== location.pathname + location.search) history.replaceState(null, "", own.dataset.at);

  const span = (ms) => {
    const seconds = Math.floor(ms / 1000);
    if (seconds < 120) return `${seconds} s`;
    if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
    return `${Math.floor(seconds / 86400)} d`;
  };
  const count = () => {
    const now = Date.now() + skew;
    for (const time of document.querySelectorAll("time[data-ms]")) {
      const past = now - Number(time.dataset.ms);
      const ago = "due" in time.dataset ? "due now" : Math.abs(past) < 1000 ? "now" : `${span(past)} ago`;
      const text = past > -1000 ? ago : `in ${span(-past)}`;
      if (time.textContent !== text) time.textContent = text;
    }
  };
  setInterval(() => document.hidden || count(), 1000);

  // On a phone the navigation is wider than the screen: the entry of this page is in sight.
  const here = document.querySelector(".top nav [aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;

  const say = (text) => {
    const place = document.getElementById("said");
    if (place) place.textContent = text;
  };

  // What needs this script is shown by it.
  const ready = (within) => {
    for (const part of within.querySelectorAll("[data-copy][hidden], [data-all][hidden]")) part.hidden = false;
  };
  ready(document);

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      const before = button.textContent;
      button.textContent = "Copied";
      say("Copied");
      setTimeout(() => { button.textContent = before; }, 1500);
    } catch {
      say("Copying was not allowed: select the text instead");
      const text = button.parentElement.querySelector("code, pre");
      if (text) getSelection().selectAllChildren(text);
    }
  });

  // The button for what is selected says how many that are.
  const tally = () => {
    for (const button of document.querySelectorAll("[data-selected]")) {
      button.dataset.text ??= button.textContent;
      const count = button.form.querySelectorAll(`input[name="${button.dataset.selected}"]:checked`).length;
      button.textContent = count ? `${button.dataset.text} (${count})` : button.dataset.text;
    }
  };
  document.addEventListener("change", (event) => {
    const name = event.target.dataset && event.target.dataset.all;
    if (name) {
      for (const box of event.target.form.querySelectorAll(`input[type=checkbox][name="${name}"]`)) {
        box.checked = event.target.checked;
      }
    }
    tally();
  });
  // A browser that leads back keeps what was ticked.
  addEventListener("pageshow", tally);

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const search = document.getElementById("q");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  });

  // A click elsewhere, or Escape, closes the account's menu.
  const close = (event) => {
    for (const menu of document.querySelectorAll(".account[open]")) {
      if (event.key === "Escape" || (event.type === "click" && !menu.contains(event.target))) menu.open = false;
    }
  };
  document.addEventListener("click", close);
  document.addEventListener("keydown", close);

  // The part of the page that changes is asked for again while somebody looks at it. What the reader has opened,
  // selected or focused stays.
  let wait = every;
  const stale = (is) => {
    const notice = document.getElementById("stale");
    if (!notice) return;
    notice.hidden = !is;
    if (!is) notice.querySelector("time").dataset.ms = Date.now() + skew;
  };
  const busy = (part) => {
    const selection = getSelection();
    const selected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    const typing = document.activeElement && part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
    return selected || typing;
  };
  const refresh = async () => {
    const part = document.getElementById("part");
    if (!part || !("live" in part.dataset)) return;
    if (!document.hidden && !busy(part)) {
      try {
        const response = await fetch(location.href, { headers: { "x-hooksaga-part": "1" }, cache: "no-store", redirect: "manual" });
        if (response.type === "opaqueredirect") return location.reload();
        if (!response.ok) throw new Error(String(response.status));
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("part");
        if (fresh) replace(part, fresh);
        wait = every;
        stale(false);
      } catch {
        wait = Math.min(wait * 2, 30000);
        stale(true);
      }
    }
    setTimeout(refresh, wait);
  };
  // The controls that do the same as this one, in a part of the page: what appears or goes in between moves the focus to
  // none that does something else.
  const purpose = (one) => JSON.stringify([
    one.tagName, one.getAttribute("href"), one.form && one.form.getAttribute("action"), one.getAttribute("formaction"),
    one.name, one.value, "copy" in one.dataset,
  ]);
  const alike = (within, one) => [...within.querySelectorAll(one.tagName)].filter((other) => purpose(other) === purpose(one));
  const replace = (part, fresh) => {
    const opened = [...part.querySelectorAll("details")].map((details) => details.open);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const place = focused ? alike(part, focused).indexOf(focused) : -1;
    const details = [...fresh.querySelectorAll("details")];
    if (details.length === opened.length) details.forEach((one, index) => { one.open = opened[index]; });
    // What somebody has filled in, and not sent yet.
    const fields = (within) => [...within.querySelectorAll("input:not([type=hidden]), textarea, select")];
    const filled = fields(part);
    fields(fresh).forEach((one, index) => {
      const before = filled[index];
      if (before && before.name === one.name && one.type !== "checkbox") one.value = before.value;
    });
    const scrolled = [...part.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
    ready(fresh);
    part.replaceWith(fresh);
    fresh.querySelectorAll(".scroll, pre").forEach((one, index) => {
      if (scrolled[index]) [one.scrollLeft, one.scrollTop] = scrolled[index];
    });
    const now = focused && alike(fresh, focused)[place];
    if (now) now.focus({ preventScroll: true });
    count();
  };
  setTimeout(refresh, every);
})();
