// One call's events as a ladder: a lane for each party, time going down. Draws with SVG; text from the network is only ever text.
"use strict";

const Ladder = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LANES = ["caller", "server", "agent", "relay", "plane", "callee"];
  const NAMES = {caller: "Caller", server: "SIP server", agent: "Shunt agent", relay: "Relay", plane: "Data plane", callee: "Callee"};
  const LEFT = 92, TOP = 52, ROW = 27, GAP_S = 0.5, AT_ONCE_MS = 20;
  const GOOD_VERDICTS = new Set(["latched", "known", "moved", "restored"]);
  const BAD_VERDICTS = new Set(["source-mismatch", "scanner", "former", "contested", "asymmetric"]);

  function make(name, attributes = {}, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const host = (endpoint) => endpoint.slice(0, endpoint.lastIndexOf(":"));

  // Which lane a SIP address belongs to, from the first INVITE: it went from the caller to the server.
  function sipLanes(events) {
    const first = events.find((e) => e.kind === "sip" && e.what === "INVITE");
    if (!first) return {lane: () => "server", caller: null, callee: null, server: null};
    const caller = first.facts.source, servers = new Set([first.facts.destination]);
    let callee = null;
    for (const e of events) {
      if (e.kind !== "sip" || e.what !== "INVITE" || e.facts.source === caller || e.facts.from_tag !== first.facts.from_tag) continue;
      servers.add(e.facts.source);
      callee = e.facts.destination;
    }
    const lane = (endpoint) => servers.has(endpoint) ? "server" : endpoint === caller || (host(endpoint) === host(caller) && endpoint !== callee) ? "caller" : "callee";
    return {lane, caller, callee, server: first.facts.destination};
  }

  // Each event as one or two rows: {kind, from, to, via, label, event, failed} or {kind, at, label} for what happens in one place.
  function rows(events, sip) {
    const found = [];
    for (const e of events) {
      if (e.kind === "sip") {
        found.push({event: e, from: sip.lane(e.facts.source), to: sip.lane(e.facts.destination), label: e.title, failed: /^[456]/.test(e.what)});
      } else if (e.kind === "control") {
        found.push({event: e, from: "server", via: "agent", to: "relay", label: e.title});
        const reply = e.facts.reply;
        found.push({
          event: e, from: "relay", via: "agent", to: "server", shift: e.facts.seconds * 1000, failed: reply === null || /^E/.test(reply),
          label: (reply === null ? "no reply" : reply) + `  (${ms(e.facts.seconds * 1000)})`,
        });
      } else if (e.kind === "learn") {
        found.push({event: e, from: e.party, to: "plane", label: e.title, failed: BAD_VERDICTS.has(e.what), dashed: !GOOD_VERDICTS.has(e.what)});
      } else if (e.kind === "table") {
        found.push({event: e, from: "agent", to: "plane", label: `${e.title} — ${arrow(e.stream)}`, failed: true});
      } else {
        const last = found[found.length - 1];
        const like = last && e.kind === "state" && last.event.kind === "state" && last.event.title === e.title && last.event.media === e.media && e.after_ms - last.event.after_ms < AT_ONCE_MS;
        if (like) {
          last.streams += 1;
          last.members.push(e);
          last.label = `${last.streams} streams ${e.title}`;
        } else {
          found.push({event: e, at: e.kind === "state" ? "plane" : "agent", streams: 1, members: [e], label: e.kind === "state" ? `${arrow(e.stream)} ${e.title}` : e.title, failed: e.what === "media-timeout" || e.what.endsWith("-down")});
        }
      }
    }
    // A reply comes when it comes, and not right behind its command.
    const at = (row) => row.event.after_ms + (row.shift || 0);
    return found.sort((a, b) => at(a) - at(b));
  }

  const arrow = (stream) => (stream || "").replace("->", " → ");
  const ms = (value) => value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value.toFixed(1)} ms`;

  // From this width on a label stands on its arrow, and times in a column of their own; below, both are a line above it.
  const WIDE = 700;
  const TALL = 40;
  let drawn = "";

  function draw(place, history, shown, open, onOpen) {
    const width = place.clientWidth >= WIDE ? Math.max(960, place.clientWidth) : place.clientWidth;
    const looks = JSON.stringify([history.call_id, history.events, [...shown], open && history.events.indexOf(open), width]);
    if (!width || (looks === drawn && place.childElementCount)) return;
    drawn = looks;
    const wide = width >= WIDE, family = getComputedStyle(place).fontFamily, events = history.events.filter((e) => shown.has(e.kind));
    const sip = sipLanes(history.events), listed = rows(events, sip);
    const taken = new Set(listed.flatMap((row) => [row.at, row.from, row.to, row.via]));
    const lanes = wide ? LANES : LANES.filter((lane) => taken.has(lane));
    const [left, right] = wide ? [LEFT + 75, width - 75] : [26, width - 26];
    const x = Object.fromEntries(lanes.map((lane, n) => [lane, lanes.length === 1 ? width / 2 : left + n * (right - left) / (lanes.length - 1)]));
    const look = {wide, width, x, font: `12px ${family}`, bold: `600 12px ${family}`};
    const height = wide ? ROW : TALL, svg = make("svg", {width}), under = make("g"), bars = make("g"), body = make("g");
    svg.append(under, bars, body);
    let y = TOP + 14, before = null;
    const yOf = new Map();
    for (const [n, row] of listed.entries()) {
      const after = row.event.after_ms + (row.shift || 0);
      if (before !== null && after - before > GAP_S * 1000) {
        body.append(make("text", wide ? {x: LEFT - 8, y: y + 4, class: "time gap"} : {x: 2, y: y + 4, class: "gap"}, `⋮ ${ms(after - before)}`));
        y += ROW * 0.8;
      }
      before = after;
      for (const member of row.members || [row.event]) if (!yOf.has(member)) yOf.set(member, y);
      const isOpen = open === row.event;
      const group = make("g", {class: `event ${row.event.kind}${row.failed ? " failed" : ""}${isOpen ? " open" : ""}`, tabindex: 0, role: "button", "aria-expanded": isOpen, "data-row": n});
      group.append(make("rect", {class: "hit", x: 0, y: y - ROW / 2 - 2, width, height}));
      const time = `+${(after / 1000).toFixed(3)} s`, label = Text.visible(row.label);
      group.append(make("title", {}, `${time} ${between(row)}${label}\n${Text.visible(row.event.text)}`));
      if (wide) {
        group.append(make("text", {x: LEFT - 8, y: y + 4, class: "time"}, time));
      } else {
        const room = Text.width(time, look.font) + 8;
        group.append(make("text", {x: 2, y: y + 4, class: "when"}, time), make("text", {x: 2 + room, y: y + 4, class: "words"}, Text.cut(label, width - room - 6, look.bold)));
      }
      if (row.at || row.from === row.to) wide ? pill(group, x[row.at || row.from], y, label, look) : group.append(make("circle", {class: "dot", cx: x[row.at || row.from], cy: y + 16, r: 5}));
      else line(group, row, wide ? y + 5 : y + 16, label, look);
      const toggle = () => onOpen(isOpen ? null : row.event);
      group.addEventListener("click", toggle);
      group.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
      body.append(group);
      y += height;
      if (isOpen && !row.shift) {
        const words = document.createElement("div"), room = wide ? width - LEFT - 10 : width;
        words.textContent = Text.visible(`${row.event.time} — ${row.event.title}. ${row.event.text}`);
        const box = make("foreignObject", {x: wide ? LEFT : 0, y: y - ROW / 2 + 2, width: room, height: heightOf(words, room, place)});
        box.append(words);
        body.append(box);
        y += Number(box.getAttribute("height")) + 6;
      }
    }
    const bottom = y + 4;
    for (const lane of lanes) {
      under.append(make("line", {class: "lane", x1: x[lane], x2: x[lane], y1: TOP - 6, y2: bottom}));
      (wide ? [NAMES[lane]] : NAMES[lane].split(" ")).forEach((word, n) => under.append(make("text", {class: "lane-name", x: x[lane], y: 18 + 14 * n}, word)));
    }
    if (x.plane) carried(bars, events, yOf, x.plane, bottom);
    svg.setAttribute("height", bottom + 6);
    const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("data-row") : null;
    place.replaceChildren(legend(sip), svg);
    if (focused !== null) place.querySelector(`[data-row="${focused}"]`)?.focus({preventScroll: true});
  }

  const between = (row) => row.from && row.from !== row.to ? `${NAMES[row.from]} → ${NAMES[row.to]}: ` : "";

  // Where SIP shows who is. Addresses of IPv6 are too long to stand above their lanes.
  function legend(sip) {
    const words = document.createElement("p");
    words.className = "muted";
    words.textContent = ["caller", "server", "callee"].filter((lane) => sip[lane]).map((lane) => `${NAMES[lane]} ${sip[lane]}`).join(" · ");
    return words;
  }

  // How high a text is in a box of this width.
  function heightOf(words, width, place) {
    const box = document.createElement("div");
    box.className = "detail";
    box.style.width = `${width}px`;
    box.append(words);
    place.append(box);
    const height = box.offsetHeight;
    box.remove();
    return height;
  }

  function line(group, row, y, label, look) {
    const from = look.x[row.from], to = look.x[row.to], right = to > from, tip = to + (right ? -2 : 2);
    group.append(make("line", {class: "arrow", x1: from, x2: tip, y1: y, y2: y, ...(row.dashed ? {"stroke-dasharray": "5 4"} : {})}));
    const back = right ? tip - 8 : tip + 8;
    group.append(make("path", {class: "head", d: `M ${tip} ${y} L ${back} ${y - 4} L ${back} ${y + 4} Z`}));
    if (row.via) group.append(make("circle", {class: "dot", cx: look.x[row.via], cy: y, r: 3}));
    if (!look.wide) return;
    const middle = (from + to) / 2, room = Math.min(Math.max(Math.abs(to - from) - 14, 330), 2 * (middle - LEFT), 2 * (look.width - middle));
    group.append(make("text", {class: "label", x: middle, y: y - 5}, Text.cut(label, room, look.font)));
  }

  function pill(group, x, y, label, look) {
    const text = Text.cut(label, 440, look.bold), half = Text.width(text, look.bold) / 2 + 12;
    const middle = Math.min(Math.max(x, half + LEFT), look.width - half - 4);
    group.append(make("rect", {class: "pill", x: middle - half, y: y - 9, width: 2 * half, height: 19, rx: 9}));
    group.append(make("text", {class: "pill-text", x: middle, y: y + 4.5}, text));
  }

  // Green bars beside the data plane's lane: while it carries RTP, caller's on the left, callee's on the right.
  function carried(bars, events, yOf, x, bottom) {
    const since = new Map();
    const close = (key, y) => {
      bars.append(make("rect", {class: "carried", x: x + (key.endsWith("caller") ? -8 : 4), y: since.get(key), width: 4, height: Math.max(2, y - since.get(key))}));
      since.delete(key);
    };
    for (const e of events) {
      if (e.kind !== "state" || e.component !== "rtp") continue;
      const key = `${e.media} ${e.party}`;
      if (e.what === "offloaded" && !since.has(key)) since.set(key, yOf.get(e));
      else if (e.what !== "offloaded" && since.has(key)) close(key, yOf.get(e));
    }
    for (const key of [...since.keys()]) close(key, bottom);
  }

  return {draw};
})();
