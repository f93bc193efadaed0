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

  function draw(place, history, shown, open, onOpen) {
    const events = history.events.filter((e) => shown.has(e.kind));
    const sip = sipLanes(history.events);
    const width = Math.max(960, place.clientWidth || 960), step = (width - LEFT - 150) / (LANES.length - 1);
    const x = Object.fromEntries(LANES.map((lane, n) => [lane, LEFT + 75 + n * step]));
    const svg = make("svg", {width});
    const marks = make("defs");
    svg.append(marks);
    const under = make("g"), bars = make("g"), body = make("g");
    svg.append(under, bars, body);
    let y = TOP + 14, before = null;
    const yOf = new Map();
    for (const row of rows(events, sip)) {
      const after = row.event.after_ms + (row.shift || 0);
      if (before !== null && after - before > GAP_S * 1000) {
        body.append(make("text", {x: LEFT - 8, y: y + 4, class: "time gap"}, `⋮ ${ms(after - before)}`));
        y += ROW * 0.8;
      }
      before = after;
      for (const member of row.members || [row.event]) if (!yOf.has(member)) yOf.set(member, y);
      const group = make("g", {class: `event ${row.event.kind}${row.failed ? " failed" : ""}${open === row.event ? " open" : ""}`});
      group.append(make("rect", {class: "hit", x: 0, y: y - ROW / 2 - 2, width, height: ROW}));
      group.append(make("title", {}, `${row.event.time}\n${row.event.text}`));
      group.append(make("text", {x: LEFT - 8, y: y + 4, class: "time"}, `+${(after / 1000).toFixed(3)} s`));
      if (row.at) pill(group, x[row.at], y, row.label, width);
      else if (row.from === row.to) pill(group, x[row.from], y, row.label, width);
      else line(group, x[row.from], x[row.to], row.via ? x[row.via] : null, y, row);
      group.addEventListener("click", () => onOpen(open === row.event ? null : row.event));
      body.append(group);
      y += ROW;
      if (open === row.event && !row.shift) {
        const text = `${row.event.time} — ${row.event.title}. ${row.event.text}`, room = width - LEFT - 10;
        const height = 14 + 18 * Math.ceil(text.length * 7 / (room - 20));
        const box = make("foreignObject", {x: LEFT, y: y - ROW / 2 + 2, width: room, height});
        const words = document.createElement("div");
        words.textContent = text;
        box.append(words);
        body.append(box);
        y += height + 6;
      }
    }
    const bottom = y + 4;
    for (const lane of LANES) {
      under.append(make("line", {class: "lane", x1: x[lane], x2: x[lane], y1: TOP - 6, y2: bottom}));
      under.append(make("text", {class: "lane-name", x: x[lane], y: 18}, NAMES[lane]));
      const address = {caller: sip.caller, callee: sip.callee, server: sip.server}[lane];
      if (address) under.append(make("text", {class: "lane-address", x: x[lane], y: 34}, address));
    }
    carried(bars, events, yOf, x.plane, bottom);
    svg.setAttribute("height", bottom + 6);
    place.replaceChildren(svg);
  }

  function line(group, from, to, via, y, row) {
    const right = to > from, tip = to + (right ? -2 : 2);
    group.append(make("line", {class: "arrow", x1: from, x2: tip, y1: y + 5, y2: y + 5, ...(row.dashed ? {"stroke-dasharray": "5 4"} : {})}));
    const back = right ? tip - 8 : tip + 8;
    group.append(make("path", {class: "head", d: `M ${tip} ${y + 5} L ${back} ${y + 1} L ${back} ${y + 9} Z`}));
    if (via !== null) group.append(make("circle", {class: "dot", cx: via, cy: y + 5, r: 3}));
    const room = Math.abs(to - from) - 14;
    group.append(make("text", {class: "label", x: (from + to) / 2, y}, cut(row.label, Math.max(room, 330))));
  }

  function pill(group, x, y, label, width) {
    const text = cut(label, 440), half = text.length * 3.4 + 12;
    const middle = Math.min(Math.max(x, half + LEFT), width - half - 4);
    group.append(make("rect", {class: "pill", x: middle - half, y: y - 9, width: 2 * half, height: 19, rx: 9}));
    group.append(make("text", {class: "pill-text", x: middle, y: y + 4.5}, text));
  }

  const cut = (text, room) => text.length * 6.4 > room ? text.slice(0, Math.max(8, Math.floor(room / 6.4) - 1)) + "…" : text;

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
