// The page's behaviour: asks the REST API every two seconds and writes what it says. While nobody answers, the last answers stay, marked with their age.
"use strict";

const PERIOD_MS = 2000, PATIENCE_MS = 8000, LONG_MS = 30000, PAGE = 25, POINTS = 90;
const AWAY = "The operator daemon does not answer.", AGENT_AWAY = "The agent does not answer.";
const MOST_ANSWERS = 100;
const $ = (id) => document.getElementById(id);
const KINDS = {sip: "SIP", control: "rtpproxy", learn: "learning", table: "table writes", state: "states", note: "agent"};
const SIDES = [["caller", "callee"], ["callee", "caller"]];
let token = sessionStorage.getItem("shunt-token");
let offset = null; // of the shown page of calls; null: the newest
let callHistory = null, openEvent = null, looking = 0, pending = 0;
const shown = new Set(Object.keys(KINDS));
const courses = {};
const readings = {}, SAME_READING_S = 0.1;
const answers = new Map(); // the last one to each question, and when it was true
let used = [], old = null, answeredAt = Date.now(), took = 0;

class Refused extends Error {}

// Whoever is asked gives no answer, or an error; the text is for people. status: of HTTP, 0 without one.
class Failed extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function ask(path, kind) {
  let answer;
  // For these all calls are read.
  const patience = /[?&](sort|problems)=/.test(path) ? LONG_MS : PATIENCE_MS;
  try {
    answer = await fetch(path, {headers: token ? {Authorization: `Bearer ${token}`} : {}, cache: "no-store", signal: AbortSignal.timeout(used.some((one) => one.why === AWAY) ? PERIOD_MS : patience)});
    if (answer.ok) return kind === "json" ? await answer.json() : await answer.text();
  } catch (error) {
    throw new Failed(error instanceof SyntaxError ? "What answers at this address is not Shunt." : AWAY);
  }
  if (answer.status === 401) throw new Refused();
  const {error} = await answer.json().catch(() => ({}));
  throw new Failed(error ? Text.sentence(error) : `What answers at this address is not Shunt, or failed (status ${answer.status}).`, answer.status);
}

// The answer; where there is none now, the last one. Throws Refused, and Failed where there never was one. key: what names the question.
async function get(path, kind = "json", key = path) {
  const known = answers.get(key);
  let found;
  try {
    const value = await ask(path, kind), silent = value.last_known_s ?? 0;
    found = {value, at: Date.now() - 1000 * silent, why: silent ? AGENT_AWAY : ""};
    // What the agent said itself is more than what its events tell.
    if (found.why && known && !known.value.last_known_s) found = {...known, why: AGENT_AWAY};
  } catch (error) {
    if (!known || error instanceof Refused || (error.status && error.status < 500)) throw error;
    found = {...known, why: error.message};
  }
  answers.delete(key);
  answers.set(key, found);
  if (answers.size > MOST_ANSWERS) answers.delete(answers.keys().next().value);
  used.push(found);
  return found.value;
}

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : Text.visible(child)));
  return element;
}

// A value in any script, cut where it is long; the whole of it is in the tooltip.
function clipped(value) {
  if (!value) return make("span", "muted", "unknown");
  const made = make("bdi", "clip", value);
  made.title = Text.visible(value);
  return made;
}

// A cell of a table that is a card on a narrow screen.
function cell(label, className, ...children) {
  const made = make("td", className, ...children);
  made.dataset.label = label;
  return made;
}

const number = (value) => value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en").replaceAll(",", " ");
const percent = (share) => share === null ? "–" : `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;

function age(seconds) {
  if (seconds < 60) return `${seconds.toFixed(0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${String(Math.floor(seconds / 60) % 60).padStart(2, "0")} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  for (const unit of ["B", "kB", "MB"]) {
    if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} GB`;
}

// -- metrics -------------------------------------------------------------------------------------

// The text format of Prometheus: name{label="value",…} number.
function parseMetrics(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    found.push({name: match[1], labels, value: Number(match[3])});
  }
  return found;
}

function quantile(metrics, name, share) {
  const buckets = metrics.filter((m) => m.name === `${name}_bucket`).map((m) => [m.labels.le === "+Inf" ? Infinity : Number(m.labels.le), m.value]).sort((a, b) => a[0] - b[0]);
  const all = buckets.length ? buckets[buckets.length - 1][1] : 0;
  if (!all) return null;
  const want = share * all;
  let [below, count] = [0, 0];
  for (const [edge, sum] of buckets) {
    if (sum >= want) return edge === Infinity ? below : below + (edge - below) * ((want - count) / (sum - count || 1));
    [below, count] = [edge, sum];
  }
  return below;
}

// -- overview ------------------------------------------------------------------------------------

function rates(status) {
  const now = performance.now() / 1000;
  const totals = {plane: status.packets.data_plane, relay: status.packets.relay, learn: status.learn_notices};
  for (const relay of status.relays) totals[`relay ${relay.name}`] = relay.packets_relayed;
  const ages = {plane: status.data_plane && status.data_plane.age_s};
  const found = {};
  for (const [name, value] of Object.entries(totals)) {
    // A total may have been read a while ago; then its rate is that of its last two readings.
    const read = now - (ages[name] || 0), last = readings[name];
    if (typeof value !== "number") {
      delete readings[name];
      continue;
    }
    if (!last || value < last.value) readings[name] = {read, value};
    else if (read - last.read > SAME_READING_S) readings[name] = {read, value, rate: (value - last.value) / (read - last.read)};
    if (readings[name].rate === undefined) continue;
    found[name] = readings[name].rate;
    (courses[name] ||= []).push(found[name]);
    if (courses[name].length > POINTS) courses[name].shift();
  }
  return found;
}

function sparkline(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${POINTS} 22`);
  svg.setAttribute("preserveAspectRatio", "none");
  const top = Math.max(1, ...values), line = document.createElementNS(svg.namespaceURI, "polyline");
  line.setAttribute("points", values.map((v, n) => `${POINTS - values.length + n},${21 - 20 * v / top}`).join(" "));
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", "var(--accent)");
  line.setAttribute("stroke-width", "1.5");
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(line);
  return svg;
}

function bar(share, grade) {
  const fill = make("i", grade);
  fill.style.width = `${Math.min(100, 100 * (share || 0))}%`;
  return make("div", "bar", fill);
}

function tile(name, value, unit, ...rest) {
  const figure = make("div", "value", value);
  if (unit) figure.append(make("small", "", ` ${unit}`));
  return make("div", "tile", make("div", "name", name), figure, ...rest);
}

function writeOverview(status, metrics) {
  const rate = status.agent?.reachable === false || used.some((answer) => answer.why) ? {} : rates(status), plane = status.data_plane, streams = status.streams;
  const known = Object.values(streams).reduce((sum, n) => sum + n, 0), share = known ? streams.offloaded / known : null;
  const full = plane && plane.capacity ? plane.entries / plane.capacity : null;
  const [half, most] = [0.5, 0.99].map((q) => quantile(metrics, "shunt_time_to_offload_seconds", q));
  const mosCount = metrics.filter((m) => m.name === "shunt_stream_mos_count").reduce((sum, m) => sum + m.value, 0);
  const mosSum = metrics.filter((m) => m.name === "shunt_stream_mos_sum").reduce((sum, m) => sum + m.value, 0);
  $("tiles").replaceChildren(
    tile("Calls", number(status.calls), "", make("div", "below", `${number(streams.offloaded)} offloaded, ${number(streams.learning)} learning, ${number(streams.relayed)} relayed`)),
    tile("Streams in the data plane", percent(share), "", bar(share)),
    tile("Table occupancy", full === null ? "–" : percent(full), "", bar(full, full > 0.95 ? "bad" : full > 0.8 ? "warn" : ""), make("div", "below", plane ? `${number(plane.entries)} of ${number(plane.capacity)} entries` : "no data plane")),
    tile("Data plane", number(rate.plane), "packets/s", sparkline(courses.plane || [])),
    tile("Relays", number(rate.relay), "packets/s", sparkline(courses.relay || [])),
    tile("Learn notices", number(rate.learn), "/s", sparkline(courses.learn || [])),
    tile("Time to offload", most === null ? "–" : number(most * 1000), most === null ? "" : "ms, 99 %", make("div", "below", half === null ? "" : `half within ${number(half * 1000)} ms`)),
    tile("Mean MOS", mosCount ? (mosSum / mosCount).toFixed(2) : "–", "", make("div", "below", mosCount ? `of ${number(mosCount)} streams that ended` : "no stream has ended yet")),
  );
  $("agent").textContent = `${status.version}, up ${age(status.uptime_s)}`;
  const chips = [];
  for (const problem of status.problems || []) chips.push(make("span", `chip ${problem.severity === "fail" ? "bad" : "warn"}`, Text.sentence(problem.message)));
  if (status.drain?.stop) chips.push(make("span", "chip", `draining for ${age(status.drain.since_s)}: ${number(status.drain.calls)} calls and ${number(status.drain.entries)} entries left`));
  if (status.role && status.role !== "alone") chips.push(make("span", `chip ${status.role === "active" ? "good" : "warn"}`, status.role));
  chips.push(plane ? make("span", `chip ${plane.connected ? "good" : ""}`, plane.connected ? plane.name : `data plane ${plane.connected === null ? "unknown" : "not connected"}`) : make("span", "chip", "no data plane"));
  $("chips").replaceChildren(...chips);
  $("relays").tBodies[0].replaceChildren(...status.relays.map((relay) => {
    const of = metrics.filter((m) => m.labels.relay === relay.name), value = (name) => (of.find((m) => m.name === name) || {}).value;
    const count = value("shunt_relay_reply_seconds_count"), sum = value("shunt_relay_reply_seconds_sum");
    return make("tr", "",
      make("td", "", relay.name), make("td", "", make("span", `chip ${relay.alive ? "good" : relay.alive === false ? "bad" : ""}`, relay.alive ? "up" : relay.alive === false ? "down" : "unknown")),
      make("td", "right", number(relay.sessions)), make("td", "right", number(rate[`relay ${relay.name}`])), make("td", "right", count ? `${(1000 * sum / count).toFixed(1)} ms` : "–"));
  }));
  const reasons = Object.entries(status.streams_by_reason || {}).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
  const most_ = Math.max(1, ...reasons.map(([, n]) => n));
  $("reasons").replaceChildren(...(reasons.length ? reasons.map(([name, n]) => make("div", "share", make("span", "", name), bar(n / most_, name === "offloaded" ? "" : "warn"), make("b", "", number(n)))) : [make("p", "muted", "No streams.")]));
  const failures = [
    ...metrics.filter((m) => m.name === "shunt_offload_failures_total" && m.value).map((m) => [m.labels.reason, m.value]),
    ...Object.entries(status.limits || {}).filter(([, n]) => n).map(([name, n]) => [name.replaceAll("_", " "), n]),
    ...(status.media_timeouts ? [["media time-outs raised", status.media_timeouts]] : []),
    ...(status.source_mismatches ? [["packets of other sources ignored", status.source_mismatches]] : []),
  ];
  $("failures").replaceChildren(...(failures.length ? failures.map(([name, n]) => make("div", "share", make("span", "", name), make("span", ""), make("b", "", number(n)))) : [make("p", "muted", "Nothing since the agent's start.")]));
}

const GRADES = {offloaded: "good", learning: "warn", allocated: "", suspended: "bad", released: ""};

function stateChips(call, direction) {
  return call.media.flatMap((line) => line.streams.filter((s) => s.component === "rtp" && s.direction === direction)).map((s) => make("span", `chip ${s.reason === "one-way" || s.reason === "silent" ? "warn" : GRADES[s.state] || ""}`, s.state === s.reason ? s.state : `${s.state}: ${s.reason}`));
}

async function writeCalls() {
  const turn = looking, query = new URLSearchParams({limit: PAGE, last_known: "yes"}), order = $("order").value;
  if ($("match").value) query.set("match", $("match").value.trim());
  const problems = $("state").value === "problems";
  const [state, reason] = problems ? [] : $("state").value.split("reason:");
  if (problems) query.set("problems", "yes");
  if (state) query.set("state", state);
  if (reason) query.set("reason", reason);
  let page;
  if (order) query.set("sort", order);
  if (offset === null && order) {
    query.set("offset", 0);
  } else if (offset === null) {
    // The API counts from the oldest; the newest are what one looks for.
    const {total} = await get(`/v1/calls?${new URLSearchParams({...Object.fromEntries(query), limit: 1})}`);
    query.set("offset", Math.max(0, total - PAGE));
  } else {
    query.set("offset", offset);
  }
  page = await get(`/v1/calls?${query}`);
  if (turn !== looking) return;
  $("total").textContent = page.total > PAGE ? `${number(page.offset + 1)} to ${number(page.offset + page.calls.length)} of ${number(page.total)}` : number(page.total);
  $("older").disabled = page.offset === 0;
  $("newer").disabled = page.next === null;
  $("older").onclick = () => { offset = Math.max(0, page.offset - PAGE); tick(); };
  $("newer").onclick = () => { offset = !order && (page.next === null || page.next + PAGE >= page.total) ? null : page.next; tick(); };
  [$("older").textContent, $("newer").textContent] = order ? ["worse", "better"] : ["older", "newer"];
  order ? $("figures").setAttribute("aria-sort", "ascending") : $("figures").removeAttribute("aria-sort");
  $("no-calls").hidden = page.calls.length > 0;
  $("calls").tBodies[0].replaceChildren(...(order ? page.calls : page.calls.toReversed()).map((call) => {
    const legs = call.media.length ? call.media[0].legs : {caller: {}, callee: {}};
    const link = callLink(call.call_id);
    const counts = call.media.flatMap((line) => line.streams).map((s) => s.packets).filter((n) => n !== null);
    const packets = counts.length ? number(counts.reduce((sum, n) => sum + n, 0)) : "–";
    const figures = [[call.loss_percent, " %", 1], [call.jitter_ms, " ms", 0], [call.mos, "", 2]].map(([value, unit, digits]) => (value === null || value === undefined ? "–" : value.toFixed(digits) + unit));
    const row = make("tr", "",
      cell("Age", "right", age(call.age_s)),
      ...[["From", call.from, "caller"], ["To", call.to, "callee"]].map(([name, uri, side]) => cell(name, "", clipped(uri), make("div", "muted", legs[side].learned || (legs[side].signalled ? `${legs[side].signalled} (signalled)` : "source unknown")))),
      cell("Call-ID", "", link), cell("Streams", "", ...SIDES.map(([side, other]) => make("div", "stream", make("span", "muted", `${side} `), ...stateChips(call, `${side}->${other}`)))), cell("Packets", "right", packets),
      cell("Loss, jitter, MOS", "", figures.join(", "), ...(call.problems || []).map((text) => make("div", "chip problem warn", text))));
    row.onclick = () => { location.hash = encodeURIComponent(call.call_id); };
    return row;
  }));
}

// What fits another question is no answer to this one.
const orEmpty = (table, written) => written.catch((error) => {
  $(table).tBodies[0].replaceChildren();
  $("total").textContent = "";
  throw error;
});

function callLink(callId) {
  const link = make("a", "", clipped(callId));
  link.href = `#${encodeURIComponent(callId)}`;
  return link;
}

async function writeFound() {
  const turn = looking, text = $("find").value.trim(), seconds = $("since").value, over = $("over").value;
  let calls = [], words = "By what SIP said of calls (HEP), those that are over too: write a part of a number or name.";
  if (text || seconds || over) {
    const query = new URLSearchParams({text, limit: 50});
    if (over) query.set("over", over);
    if (seconds) query.set("since", Math.floor(Date.now() / 1000) - Number(seconds));
    calls = (await get(`/v1/find?${query}`, "json", `find ${text} ${over} ${seconds}`)).calls;
    if (turn !== looking) return;
    words = calls.length === 50 ? "The latest 50; write more of it to see others." : calls.length ? "" : "No call fits.";
  }
  $("found-nothing").textContent = words;
  $("found").hidden = !calls.length;
  $("found").tBodies[0].replaceChildren(...calls.map((call) => make("tr", "",
    cell("Began (UTC)", "", clock(call.began)), cell("Lasted", "right", lasted(call)), cell("From", "", clipped(call.from)), cell("To", "", clipped(call.to)), cell("Answer", "", answer(call)), cell("Call-ID", "", callLink(call.call_id)))));
}

const clock = (time) => time.replace("T", " ").slice(0, 19);
const lasted = (said) => said.ended ? age((Date.parse(said.ended) - Date.parse(said.began)) / 1000) : said.answered ? "up" : "ringing";
const answer = (said) => `${said.sip_code || "–"}${said.hung_up ? `, ${said.hung_up} hung up` : ""}`;

async function writeConferences() {
  const found = await get("/v1/conferences?last_known=yes").catch((error) => { if (error.status) return {conferences: []}; throw error; });
  $("conferences").hidden = !found.conferences.length;
  $("rooms").tBodies[0].replaceChildren(...found.conferences.map((one) => make("tr", "", make("td", "", conferenceLink(one.name)), make("td", "", one.design || "–"), make("td", "right", number(one.participants)))));
}

// -- one conference ------------------------------------------------------------------------------

const CONFERENCES = "/conferences/"; // behind #; Call-IDs are escaped there

function conferenceLink(name) {
  const link = make("a", "", clipped(name));
  link.href = `#${CONFERENCES}${encodeURIComponent(name)}`;
  return link;
}

function memberRow(one, tiling) {
  if (!one.media) return make("tr", "", make("td", "", make("bdi", "", one.name)), ...[1, 2].map(() => make("td", "muted", "unknown")));
  const sends = one.media.filter((medium) => medium.source && medium.direction.startsWith("send")).map((medium) => medium.medium);
  const gets = [one.gets_tiles ? "tiles" : tiling ? "no tiles" : "", one.gets_mix ? "a mix" : ""].filter(Boolean);
  return make("tr", "", make("td", "", make("bdi", "", one.name)), make("td", "", sends.join(", ") || "–"), make("td", "", gets.join(", ") || "–"));
}

async function writeConference(name) {
  const found = await get(`/v1/conferences/${encodeURIComponent(name)}?last_known=yes`).catch((error) => { if (error.status === 404) return null; throw error; });
  if (conferring() !== name) return;
  $("conference-name").replaceChildren(make("bdi", "", name));
  const tiling = found && found.tiling;
  $("tiling").hidden = !tiling;
  $("inside").hidden = !found;
  $("conference-line").textContent = found ? `${number(found.participants.length)} participants${found.design ? `, trees ${found.design}${tiling ? "" : "; its video is not tiled"}` : ""}${found.problem ? `; ${Text.sentence(found.problem)}` : ""}` : "There is no such conference any more.";
  if (!found) return;
  if (tiling) {
    $("tiling-line").textContent = Tiling.line(tiling, found.participants.filter((one) => one.gets_tiles).map((one) => one.name));
    $("tiling-problem").hidden = !tiling.problem;
    $("tiling-problem").textContent = Text.sentence(tiling.problem || "");
    const names = new Map(found.participants.map((one) => [one.id, one.name]));
    const named = (list) => list.map((one) => ({...one, participant: names.get(one.participant) ?? one.participant}));
    Tiling.draw($("streams"), {...tiling, streams: tiling.streams.map((one) => ({...one, tiles: named(one.tiles)})), untiled: named(tiling.untiled)});
  }
  $("members").tBodies[0].replaceChildren(...found.participants.map((one) => memberRow(one, tiling)));
}

// -- one call ------------------------------------------------------------------------------------

function facts(...pairs) {
  return make("dl", "", ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
}

const UNKNOWN = {state: "unknown", reason: "unknown", packets: null, idle_ms: null};

// What the relay does to a party's media, one line each; null: nothing.
function heldBy(side, media) {
  const held = (media.held_by || []).filter((hold) => !hold.party || hold.party === side);
  return held.length ? make("span", "", ...held.map((hold) => make("div", "", Text.visible(hold.text)))) : null;
}

// quality: of its media line; null: not known.
function partyPanel(side, other, media, quality, several) {
  const leg = media.legs[side], stream = media.streams.find((s) => s.component === "rtp" && s.direction === `${side}->${other}`) || UNKNOWN, q = quality ? quality[side] : null;
  const title = `${side[0].toUpperCase()}${side.slice(1)}${several ? `, media ${media.index}` : ""}${quality && quality.kind ? ` (${quality.kind})` : ""}`;
  const mos = q && q.mos !== null ? make("span", "", make("span", "mos", q.mos.toFixed(2)), ` R ${q.r.toFixed(1)}, ${q.codec}`) : make("span", "muted", q ? `none — ${q.note}` : "unknown");
  return make("div", "panel", make("h2", "", title), facts(
    ["Signalling says", leg.signalled || (q ? "–" : "unknown")],
    ["Sends from", leg.learned || make("b", "", q ? "no source latched yet" : "unknown")],
    ["Sends to relay port", leg.relay_address],
    ["Its stream", make("span", "", make("span", `chip ${GRADES[stream.state] || ""}`, stream.state), stream.reason === stream.state ? "" : ` ${stream.reason}`, stream.detail ? ` (${stream.detail})` : "")],
    ["", stream.explanation ? make("span", "muted", stream.explanation) : null],
    ["On the relay for", heldBy(side, media)],
    ["In the data plane", q && q.packets !== null ? `${number(q.packets)} packets, ${size(q.bytes)}${stream.idle_ms !== null && stream.idle_ms > 1000 ? `, the last ${age(stream.idle_ms / 1000)} ago` : ""}` : stream.packets === null ? "unknown" : "no packet"],
    ["Lost before here", q && q.loss_percent !== null ? `${number(q.lost)} (${q.loss_percent.toFixed(2)} %)` : null],
    ["Jitter", q && q.jitter_ms !== null ? `${q.jitter_ms.toFixed(2)} ms` : null],
    ["Time to offload", stream.offloaded_after_ms === null || stream.offloaded_after_ms === undefined ? null : `${stream.offloaded_after_ms.toFixed(0)} ms`],
    ["MOS (G.107)", mos],
    ["Packets of others", leg.source_mismatches ? number(leg.source_mismatches) : null],
  ));
}

function writeHistory(call) {
  const said = callHistory.signalling;
  $("signalled").replaceChildren(facts(["From", said?.from ? make("bdi", "", said.from) : "unknown"], ["To", said?.to ? make("bdi", "", said.to) : "unknown"], ...(said ? [["Began (UTC)", clock(said.began)], ["Lasted", lasted(said)], ["Answer", answer(said)]] : [])));
  $("diagnosis").replaceChildren(...callHistory.diagnosis.map((finding, n) => make("div", `finding ${finding.level}${n === 0 ? " first" : ""}`, Text.sentence(finding.text))));
  if (!callHistory.counters_fresh && !callHistory.last_known_s) $("diagnosis").append(make("div", "finding hint", "The counters could not be read now: those shown are older."));
  $("call-line").textContent = [call ? `relay ${Text.visible(call.relay)}, begun ${clock(call.created)} UTC, ${call.ended ? "ended" : `${age(call.age_s)} ago`}` : "no media session is known any more", `${callHistory.events.length} events`].join("; ");
  const panels = [];
  for (const [n, media] of (call ? call.media : []).entries()) {
    for (const [side, other] of SIDES) panels.push(partyPanel(side, other, media, call.quality && call.quality[n], call.media.length > 1));
  }
  $("parties").replaceChildren(...panels);
  $("left-out").hidden = !callHistory.left_out;
  $("left-out").textContent = `${number(callHistory.left_out)} events were left out in the middle: a call keeps its first and its last ones.`;
  Ladder.draw($("ladder"), callHistory, shown, openEvent, (event) => { openEvent = event; writeHistory(call); });
}

async function writeCall(callId) {
  const path = `/v1/calls/${encodeURIComponent(callId)}`;
  const found = await get(`${path}/history`);
  const ids = found.quality.map((q) => q.call_id);
  const call = await get(`${ids.length && !ids.includes(callId) ? `/v1/calls/${encodeURIComponent(ids[0])}` : path}?last_known=yes`).catch((error) => { if (error.status === 404) return null; throw error; });
  if (calling() !== callId) return;
  $("call-id").replaceChildren(make("bdi", "", callId));
  $("call-id").title = Text.visible(callId);
  if (openEvent) openEvent = found.events.find((e) => e.time === openEvent.time && e.title === openEvent.title) || null;
  callHistory = found;
  writeHistory(call);
}

for (const [kind, name] of Object.entries(KINDS)) {
  const box = make("input", "");
  box.type = "checkbox";
  box.checked = true;
  box.onchange = () => { box.checked ? shown.add(kind) : shown.delete(kind); tick(); };
  $("filters").append(make("label", "", box, name));
}

// A browser lets a page without TLS copy only what is selected.
$("copy").onclick = async () => {
  const place = $("report"), stale = old ? `${old.why} This is the last known state, ${age((Date.now() - old.at) / 1000)} old.\n` : "";
  place.value = stale + callHistory.report;
  $("parts").hidden = false;
  const written = navigator.clipboard ? navigator.clipboard.writeText(place.value) : Promise.reject();
  const copied = await written.then(() => true, () => { place.select(); return document.execCommand("copy"); });
  if (!copied) place.select();
  $("copied").textContent = copied ? "The report is copied." : "The browser does not allow to copy: the report is selected, copy it from here.";
};

// -- what the address keeps ----------------------------------------------------------------------

const KEPT = {order: "sort", state: "state", match: "match"};

function remember() {
  const query = new URLSearchParams(Object.entries(KEPT).map(([id, name]) => [name, $(id).value]).filter(([, value]) => value));
  history.replaceState(null, "", `${location.pathname}${`?${query}`.replace(/^\?$/, "")}${location.hash}`);
  offset = null;
  tick();
}

for (const [id, name] of Object.entries(KEPT)) {
  const value = new URLSearchParams(location.search).get(name) || "";
  if (id === "match" || [...$(id).options].some((one) => one.value === value)) $(id).value = value;
}

// -- the round -----------------------------------------------------------------------------------

// What the address names, however much of it is escaped.
function named(text) {
  try {
    return decodeURIComponent(text) || null;
  } catch {
    return text;
  }
}

function conferring() {
  return location.hash.startsWith(`#${CONFERENCES}`) ? named(location.hash.slice(1 + CONFERENCES.length)) : null;
}

function calling() {
  return conferring() ? null : named(location.hash.slice(1));
}

async function tick() {
  const turn = ++looking, callId = calling(), conference = conferring(), mine = used = [], begun = Date.now();
  pending++;
  try {
    const [status, metrics] = await Promise.all([get("/v1/status"), get("/metrics", "text").then(parseMetrics)]);
    if (turn !== looking) return;
    if (status.agent?.reachable === false) mine.push({why: AGENT_AWAY, at: Date.now() - 1000 * status.agent.age_s});
    $("token").hidden = true;
    writeOverview(status, metrics);
    if (!callId && !conference) $("overview").hidden = false;  // also where the lists cannot be had
    if (callId) await writeCall(callId); else if (conference) await writeConference(conference); else await Promise.all([orEmpty("calls", writeCalls()), orEmpty("found", writeFound()), orEmpty("rooms", writeConferences())]);
    if (calling() !== callId || conferring() !== conference) return;
    $("overview").hidden = Boolean(callId || conference);
    $("call").hidden = !callId;
    $("conference").hidden = !conference;
    $("trouble").hidden = true;
  } catch (error) {
    if (turn !== looking) return;
    if (error instanceof Refused) {
      $("token").hidden = false;
      $("overview").hidden = true;
    } else {
      if (!(error instanceof Failed)) console.error(error);
      $("trouble").textContent = error instanceof Failed ? error.message : "The page could not show this answer; reload it.";
      $("trouble").hidden = false;
      if (callId || conference) $("overview").hidden = true;
    }
    $("call").hidden = $("conference").hidden = true;
  } finally {
    pending--;
    if (turn === looking) {
      $("nothing").hidden = ["token", "overview", "call", "conference"].some((id) => !$(id).hidden);
      answeredAt = Date.now();
      took = answeredAt - begun;
      const aged = mine.filter((answer) => answer.why);
      old = aged.length ? aged.reduce((a, b) => a.at <= b.at ? a : b) : null;
      markAge();
    }
  }
}

// Says that what is shown is not of now, and how old it is.
function markAge() {
  const late = Date.now() - answeredAt > 2 * PERIOD_MS + took && $("token").hidden;
  const shown = old || (late ? {why: pending ? "No answer comes." : "The page waits while text is selected.", at: answeredAt} : null);
  document.body.classList.toggle("stale", Boolean(shown));
  $("old").hidden = !shown;
  if (!shown) return;
  if ($("old-why").textContent !== shown.why) $("old-why").textContent = shown.why;
  $("old-age").textContent = `This is the last known state, ${age((Date.now() - shown.at) / 1000)} old.`;
}

$("token").onsubmit = (event) => {
  event.preventDefault();
  token = $("token-text").value;
  sessionStorage.setItem("shunt-token", token);
  tick();
};
$("match").oninput = $("state").onchange = $("order").onchange = remember;
$("find").oninput = $("over").onchange = $("since").onchange = tick;
window.onhashchange = () => { callHistory = null; openEvent = null; $("parts").hidden = true; tick(); };
window.onresize = () => { if (callHistory && !$("call").hidden) tick(); };
tick();
// What is selected to be copied stays as it is. A look that takes longer than the period, as with an agent that hangs, is waited for, and there is a pause behind it.
setInterval(() => { if (!pending && Date.now() - answeredAt >= Math.min(took, LONG_MS) && !document.hidden && $("token").hidden && getSelection().isCollapsed) tick(); }, PERIOD_MS);
setInterval(markAge, 1000);
