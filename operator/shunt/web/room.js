// A room in the browser: one session at an edge, renegotiated when others come, begun anew when it is lost.
"use strict";

const $ = (id) => document.getElementById(id);
const ROOM = decodeURIComponent(location.pathname.split("/")[2] || "");
const TOKEN = location.hash.slice(1);
const GRANT = readGrant(TOKEN);
const KINDS = ["audio", "video", "screen"];
const TILED = "#tiles"; // whose line brings the stream that shows many
const SPEAKING = 0.015; // of full scale
const SPEAKING_MS = 700;
const LOST_MS = 6000; // not connected for longer than this is lost
const FIRST_WAIT_MS = 300, LONGEST_WAIT_MS = 5000;
const CHOICES = { audio: "audio-input", video: "video-input", output: "audio-output" };
const DEVICES = { audio: "audioinput", video: "videoinput", output: "audiooutput" };
const REFUSED = {
  audio: (codec) => `This room's audio is ${codec}. Your browser does not have it, so you hear nobody.`,
  video: (codec) => (codec ? `This room's video is ${codec}. Your browser does not have it, so you take part with audio only.` : "This room is for audio only."),
  screen: (codec) => (codec ? `Screens of this room are ${codec}, which your browser does not have.` : ""),
};
const QUIET = 401; // no use in trying again

/** What the token says of itself; only the server can tell whether it is true. */
function readGrant(token) {
  try {
    const bytes = Uint8Array.from(atob(token.split(".")[0].replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return {};
  }
}

/** A request that was not done: the server's own words and its status, 0 where nobody answered. */
class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body, more = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: { Authorization: `Bearer ${TOKEN}`, ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body ? JSON.stringify(body) : undefined,
      ...more,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "the server does not answer");
  }
  if (!response.ok) {
    let words = `status ${response.status}`;
    try {
      words = (await response.json()).error || words;
    } catch { /* no words */ }
    throw new Failure(response.status, words);
  }
  return response;
}

/** Server-sent events of a response, as [name, data]. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event: "));
      const data = lines.find((line) => line.startsWith("data: "));
      if (name && data) yield [name.slice(7), JSON.parse(data.slice(6))];
    }
  }
}

/** The constraint of a chosen device. */
const exactly = (id) => (id ? { deviceId: { exact: id } } : {});

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** An answer that lets the browser be silent where nobody speaks (DTX, RFC 7587 section 6.1). */
function quiet(sdp) {
  return sdp.replace(/^a=rtpmap:(\d+) opus\/.*$/gim, (line, number) => (new RegExp(`^a=fmtp:${number} `, "m").test(sdp) ? line : `${line}\r\na=fmtp:${number} usedtx=1`))
    .replace(/^a=fmtp:(\d+) .*$/gm, (line, number) => (new RegExp(`^a=rtpmap:${number} opus/`, "im").test(sdp) && !line.includes("usedtx") ? `${line};usedtx=1` : line));
}

/** One session: a peer connection, and the server's resource for it. on: {look, restarted, lost(why)}. */
class Session {
  constructor(on) {
    this.on = on;
    this.pc = new RTCPeerConnection({ bundlePolicy: "max-bundle" });
    this.kinds = new Map(); // transceiver -> what it is for
    this.refused = {}; // the room's codecs of media that this browser does not have
    this.muted = { wanted: null, told: null, telling: false };
    this.path = null;
    this.ended = false;
    this.turn = Promise.resolve();
    this.stopping = new AbortController();
    this.timer = null;
    this.pc.addEventListener("connectionstatechange", () => this.changed());
  }

  /** Another network, or none: ICE begins anew, and all else stays. Where that does not help in time, the session is lost. */
  changed() {
    const state = this.pc.connectionState;
    if (state === "connected") {
      clearTimeout(this.timer);
      this.timer = null;
    } else if ((state === "disconnected" || state === "failed") && !this.timer) {
      this.timer = setTimeout(() => this.lose("the connection is gone"), LOST_MS);
      this.on.restarted();
      this.pc.restartIce();
      this.negotiate(() => true);
    }
  }

  lose(why) {
    if (this.ended) return;
    this.end();
    this.on.lost(why);
  }

  /** A line that sends. */
  send(kind, track) {
    const options = { direction: "sendonly" };
    let transceiver;
    if (kind === "audio") {
      transceiver = this.pc.addTransceiver(track, options);
    } else {
      try {
        transceiver = this.pc.addTransceiver(track, { ...options, sendEncodings: [{ scalabilityMode: "L1T3" }] });
      } catch {
        transceiver = this.pc.addTransceiver(track, options);
      }
    }
    this.kinds.set(transceiver, kind);
    return transceiver;
  }

  /** Have as many lines for others' streams as are wanted; whether there are more now. */
  receive(wanted) {
    let more = false;
    for (const kind of KINDS) {
      if (kind in this.refused) continue;
      let lines = [...this.kinds].filter(([transceiver, of]) => of === kind && transceiver.direction === "recvonly").length;
      for (; lines < Math.min(wanted[kind] || 0, 15); lines++) {
        this.kinds.set(this.pc.addTransceiver(kind === "audio" ? "audio" : "video", { direction: "recvonly" }), kind);
        more = true;
      }
    }
    return more;
  }

  async offer() {
    await this.pc.setLocalDescription(await this.pc.createOffer());
    const media = {};
    for (const [transceiver, kind] of this.kinds) if (transceiver.mid !== null) media[transceiver.mid] = kind;
    return { offer: this.pc.localDescription.sdp, media };
  }

  async join(name, muted, replaces) {
    const given = await this.offer();
    const response = await ask("POST", `/rooms/${encodeURIComponent(ROOM)}/sessions`, { ...given, name, muted, replaces });
    const answer = await response.json();
    this.muted.told = muted;
    this.refused = answer.refused;
    if (this.ended) return;
    this.path = `/rooms/${encodeURIComponent(ROOM)}/sessions/${answer.session}`;
    this.id = answer.session;
    this.me = answer.participant;
    this.name = answer.name;
    if (this.muted.wanted !== null) this.tellMuted(this.muted.wanted); // changed while joining
    await this.pc.setRemoteDescription({ type: "answer", sdp: quiet(answer.answer) });
    this.follow();
  }

  /** Offer anew, one after the other. change: what is done before, false where nothing is to be offered. */
  negotiate(change) {
    this.turn = this.turn.then(async () => {
      if (this.ended || !(await change())) return;
      try {
        const answer = await this.askAgain(await this.offer());
        this.refused = answer.refused;
        this.on.refused();
        if (!this.ended) await this.pc.setRemoteDescription({ type: "answer", sdp: quiet(answer.answer) });
      } catch (error) {
        this.lose(`a change was refused: ${error.message}`);
      }
    });
    return this.turn;
  }

  /** Tell the server, for the others' pages, whether the microphone is muted. */
  async tellMuted(muted) {
    const state = this.muted;
    state.wanted = muted;
    if (state.telling || !this.path) return;
    state.telling = true;
    while (!this.ended && state.told !== state.wanted) {
      const now = state.wanted;
      try {
        await ask("PUT", `${this.path}/muted/${now ? "yes" : "no"}`);
        state.told = now;
      } catch (error) {
        if (error.status !== 0 && error.status !== 503) break;
        await sleep(LONGEST_WAIT_MS);
      }
    }
    state.telling = false;
  }

  /** The answer to a further offer. While the server is away nothing is lost, so it is asked again. */
  async askAgain(given) {
    for (let wait = FIRST_WAIT_MS; ; wait = Math.min(2 * wait, LONGEST_WAIT_MS)) {
      try {
        return await (await ask("POST", this.path, given)).json();
      } catch (error) {
        if (this.ended || (error.status !== 0 && error.status !== 503)) throw error;
      }
      await sleep(wait);
    }
  }

  /** What the server says of the room, until the session is over. Media goes on while it says nothing. */
  async follow() {
    let wait = FIRST_WAIT_MS;
    while (!this.ended) {
      try {
        const response = await ask("GET", `${this.path}/events`, null, { signal: this.stopping.signal });
        for await (const [name, data] of eventsOf(response)) {
          if (this.ended) return;
          wait = FIRST_WAIT_MS;
          if (name === "closed") return this.lose(data.closed);
          this.on.look(data);
          if (data.wanted) this.negotiate(() => this.receive(data.wanted));
        }
      } catch (error) {
        if (this.ended) return;
        if (error.status === 404) return this.lose(error.message);
      }
      await sleep(wait);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  track(mid) {
    return this.pc.getTransceivers().find((one) => one.mid === mid)?.receiver.track ?? null;
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.stopping.abort();
    this.pc.close();
  }

  async leave() {
    const path = this.path;
    this.end();
    if (path) await ask("DELETE", path, null, { keepalive: true, signal: AbortSignal.timeout(LONGEST_WAIT_MS) }).catch(() => {});
  }
}

/** The page: own devices, the session there is, and what is shown. */
class Page {
  constructor() {
    this.tiles = new Tiles($("tiles"));
    this.tracks = { audio: null, video: null, screen: null };
    this.chosen = { audio: "", video: "", output: "" }; // devices, by their id; empty: the browser's choice
    this.senders = {}; // transceivers of the session there is, by kind
    this.session = null;
    this.look = null;
    this.seen = new Map(); // getStats of each mid, last time
    this.heard = new Map(); // when each was last heard
    this.sounds = new Map();
    this.times = { clicked: null, picture: null };
    this.counts = { sessions: 0, restarts: 0, lost: 0 };
    this.inside = false;
    this.wanted = { audio: 0, video: 0, screen: 0 };
  }

  // -- the lobby

  async open() {
    $("room-name").textContent = ROOM;
    document.title = ROOM;
    $("name").value = GRANT.name || sessionStorage.getItem("name") || "";
    $("name").readOnly = Boolean(GRANT.name);
    if (!TOKEN) return this.trouble("This link has no token: ask for a whole one.");
    this.watching = GRANT.role === "watch";
    if (this.watching) $("devices").hidden = document.querySelector(".preview").hidden = true;
    else if (!navigator.mediaDevices) this.trouble("The browser gives no camera and microphone to this page: it has to come by HTTPS, or from localhost.");
    this.peek();
    if (!this.watching) await this.preview();
  }

  async peek() {
    try {
      const room = await (await ask("GET", `/rooms/${encodeURIComponent(ROOM)}/participants`)).json();
      this.wanted = room.wanted;
      const names = room.participants.map((one, place) => [place ? ", " : "", Object.assign(document.createElement("bdi"), { textContent: one.name })]);
      $("who").replaceChildren(names.length ? "In the room: " : "Nobody is in the room yet.", ...names.flat());
    } catch (error) {
      this.trouble(error.message);
      if (error.status === QUIET) $("join").disabled = true;
    }
  }

  async preview() {
    for (const [kind, box] of [["audio", "with-microphone"], ["video", "with-camera"]]) {
      $(box).addEventListener("change", () => this.device(kind, $(box).checked));
    }
    await Promise.all([this.device("audio", true), this.device("video", true)]);
    for (const [kind, id] of Object.entries(CHOICES)) $(id).addEventListener("change", () => this.choose(kind, $(id).value));
    navigator.mediaDevices?.addEventListener("devicechange", () => this.listDevices());
    await this.listDevices();
  }

  /** Offer the devices that there are. */
  async listDevices() {
    if (!navigator.mediaDevices?.enumerateDevices) return;
    const all = await navigator.mediaDevices.enumerateDevices();
    for (const [kind, id] of Object.entries(CHOICES)) {
      const found = all.filter((one) => one.kind === DEVICES[kind] && one.deviceId);
      const usable = kind !== "output" || "setSinkId" in HTMLMediaElement.prototype;
      $(id).replaceChildren(...found.map((one, place) => new Option(one.label || `${place + 1}`, one.deviceId)));
      const now = this.chosen[kind] || this.tracks[kind]?.getSettings().deviceId;
      if (found.some((one) => one.deviceId === now)) $(id).value = now;
      $(id).parentElement.hidden = !usable || found.length < 2;
    }
  }

  /** Use another device of a kind: in the room it takes the place of the one before, and a muted microphone stays muted. */
  async choose(kind, id) {
    this.chosen[kind] = id;
    if (kind === "output") {
      for (const sound of this.sounds.values()) sound.setSinkId(id).catch((error) => this.trouble(`No loudspeaker: ${error.message}`));
      return;
    }
    if (!this.tracks[kind]) return;
    const { enabled } = this.tracks[kind];
    await this.device(kind, false);
    await this.device(kind, true);
    if (this.tracks[kind]) this.tracks[kind].enabled = enabled;
    if (this.chosen[kind] !== id) await this.listDevices();
    if (this.inside) await this.change(kind, this.tracks[kind]);
  }

  /** Have a device, or none; what is wrong is said. */
  async device(kind, on) {
    if (!on) {
      this.tracks[kind]?.stop();
      this.tracks[kind] = null;
    } else if (navigator.mediaDevices && !this.tracks[kind]) {
      try {
        const wanted = kind === "audio" ? { audio: { echoCancellation: true, ...exactly(this.chosen.audio) } } : { video: { ...exactly(this.chosen.video), width: { ideal: 640 }, height: { ideal: 360 }, frameRate: { ideal: 30 } } };
        const [track] = (await navigator.mediaDevices.getUserMedia(wanted)).getTracks();
        this.tracks[kind] = track;
        track.addEventListener("ended", () => this.tracks[kind] === track && this.unplugged(kind));
      } catch (error) {
        if (this.chosen[kind]) {
          this.chosen[kind] = ""; // that device is gone or busy: the browser chooses
          return this.device(kind, true);
        }
        $(kind === "audio" ? "with-microphone" : "with-camera").checked = false;
        if (kind === "video") $("no-camera").textContent = `No camera: ${error.message}`;
      }
    }
    if (kind === "video") {
      $("preview").srcObject = this.tracks.video ? new MediaStream([this.tracks.video]) : null;
      $("no-camera").hidden = Boolean(this.tracks.video) || !$("no-camera").textContent;
    }
  }

  /** A device that is gone: the browser chooses another, if there is one. */
  async unplugged(kind) {
    this.chosen[kind] = "";
    await this.choose(kind, "");
    await this.listDevices();
  }

  // -- in and out

  async enter() {
    this.name = $("name").value.trim() || "guest";
    sessionStorage.setItem("name", this.name);
    this.times = { clicked: performance.now(), picture: null };
    this.inside = true;
    $("join").disabled = true;
    this.trouble("");
    await this.connect();
  }

  /** Begin a session, again and again while that may help. */
  async connect(replaces) {
    let wait = FIRST_WAIT_MS;
    // Who comes back at once keeps the own name: the server knows first that this browser has left.
    await this.leaving;
    while (this.inside) {
      this.status(replaces ? "Connecting again…" : "Joining…");
      const session = new Session({ look: (look) => this.looked(session, look), restarted: () => this.counts.restarts++, refused: () => this.notice(), lost: (why) => this.lost(session, why) });
      this.session = session;
      this.senders = {};
      for (const kind of KINDS) if (this.tracks[kind]) this.senders[kind] = session.send(kind, this.tracks[kind]);
      // One line at least: an offer without media is none.
      const least = Object.keys(this.senders).length ? 0 : 1;
      session.receive({ audio: Math.max(this.wanted.audio, least), video: Math.max(this.wanted.video, least), screen: this.wanted.screen });
      try {
        await session.join(this.name, Boolean(this.tracks.audio && !this.tracks.audio.enabled), replaces);
        this.counts.sessions++;
        this.entered();
        return;
      } catch (error) {
        session.end();
        const status = error.status ?? -1;
        this.trouble(error.message);
        if (status !== 0 && status !== 503 && status !== 409) return this.out();
      }
      await sleep(wait);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  entered() {
    this.trouble("");
    this.status("In the room");
    $("lobby").hidden = $("chooser").hidden = true;
    this.notice();
    $("tiles").hidden = false;
    $("controls").hidden = this.watching;
    if (!$("mute").dataset.seen) $("mute").focus();
    $("mute").dataset.seen = "yes";
    this.buttons();
    this.draw();
  }

  lost(session, why) {
    if (session !== this.session || !this.inside) return;
    this.counts.lost++;
    this.status(`Lost: ${why}`);
    this.connect(session.id);
  }

  out() {
    this.inside = false;
    this.session = null;
    $("lobby").hidden = $("chooser").hidden = false;
    $("notice").hidden = true;
    $("tiles").hidden = $("controls").hidden = true;
    $("join").disabled = false;
    this.tiles.keep(new Set());
    for (const [, sound] of this.sounds) sound.remove();
    this.sounds.clear();
    this.status("");
  }

  async leave() {
    const session = this.session;
    this.tracks.screen?.stop();
    this.tracks.screen = null;
    this.out();
    this.leaving = session?.leave();
    await this.leaving;
    this.peek();
  }

  // -- own devices

  mute() {
    const track = this.tracks.audio;
    if (!track) return this.turnOn("audio");
    track.enabled = !track.enabled;
    this.session?.tellMuted(!track.enabled);
    this.draw();
    return this.buttons();
  }

  async turnOn(kind) {
    await this.device(kind, true);
    const track = this.tracks[kind];
    if (!track) return this.trouble(kind === "audio" ? "There is no microphone." : $("no-camera").textContent || "There is no camera.");
    if (kind === "audio") this.session?.tellMuted(false);
    return this.change(kind, track);
  }

  camera() {
    if (!this.tracks.video) return this.turnOn("video");
    this.device("video", false);
    return this.change("video", null);
  }

  async share() {
    if (this.tracks.screen) {
      this.tracks.screen.stop();
      this.tracks.screen = null;
      return this.change("screen", null);
    }
    try {
      const [track] = (await navigator.mediaDevices.getDisplayMedia({ video: { frameRate: { max: 15 } } })).getVideoTracks();
      track.contentHint = "detail";
      track.addEventListener("ended", () => this.tracks.screen === track && this.share());
      this.tracks.screen = track;
      await this.change("screen", track);
    } catch (error) {
      if (error.name !== "NotAllowedError") this.trouble(`No screen: ${error.message}`);
    }
    return undefined;
  }

  /** Send another track of a kind, or none: then its line is on hold. */
  async change(kind, track) {
    this.buttons();
    this.draw();
    const session = this.session;
    if (!session || kind in session.refused) return;
    await session.negotiate(async () => {
      const line = this.senders[kind];
      if (!line) {
        if (track) this.senders[kind] = session.send(kind, track);
        return Boolean(track);
      }
      await line.sender.replaceTrack(track);
      line.direction = track ? "sendonly" : "inactive";
      return true;
    });
  }

  buttons() {
    const set = (id, pressed, words) => {
      $(id).setAttribute("aria-pressed", String(pressed));
      $(id).querySelector("span").textContent = words;
    };
    const muted = !this.tracks.audio?.enabled;
    set("mute", muted, muted ? "Unmute" : "Mute");
    set("camera", !this.tracks.video, this.tracks.video ? "Camera off" : "Camera on");
    set("screen", Boolean(this.tracks.screen), this.tracks.screen ? "Stop sharing" : "Share screen");
    set("choose", !$("chooser").hidden, "Devices");
  }

  // -- what is shown

  looked(session, look) {
    if (session !== this.session) return;
    if (look.participants) {
      this.look = look;
      this.wanted = look.wanted;
    }
    this.trouble(look.problem || "");
    this.draw();
  }

  /** A participant's tile of a stream that shows many: the stream's line, null where there is none, and the part. Null: it comes by a line of its own. */
  tiled(id) {
    const tile = this.look?.tiling?.tiles.find((one) => one.id === id);
    return tile ? { line: this.look.lines.find((one) => one.shows === TILED && one.ssrc === tile.ssrc && one.medium === "video") ?? null, part: tile } : null;
  }

  line(id, kind) {
    return this.look?.lines.find((one) => one.shows === id && one.medium === kind);
  }

  draw() {
    if (!this.inside || !this.session) return;
    const keep = new Set();
    const tile = (key, ...more) => {
      keep.add(key);
      return this.tiles.of(key, ...more);
    };
    if (!this.watching) {
      const mine = tile("/me", this.session.name || this.name, { me: true, after: " (you)" });
      mine.show(this.tracks.video, Boolean(this.tracks.video));
      mine.note([this.tracks.audio?.enabled ? "" : "muted", this.tracks.video && "video" in this.session.refused ? "camera not sent" : ""].filter(Boolean).join(" · "));
    }
    for (const one of this.look?.participants ?? []) {
      const shown = tile(`${one.id}/video`, one.name);
      const tiled = this.tiled(one.id);
      const line = tiled ? tiled.line : this.line(one.id, "video");
      const sends = Boolean(one.media.video);
      shown.onfirst = () => this.times.picture ?? (this.times.picture = performance.now());
      shown.show(line ? this.session.track(line.mid) : null, sends, tiled?.part);
      const camera = one.media.video === undefined ? (one.at_edge ? "no camera" : "by phone") : sends ? "" : "camera off";
      const unheard = this.look.without_line.audio.includes(one.id) ? "not heard" : "";
      shown.note([camera, one.muted ? "muted" : one.at_edge && !one.media.audio ? "no microphone" : "", unheard].filter(Boolean).join(" · "));
      if (one.media.screen) {
        const screen = this.line(one.id, "screen");
        tile(`${one.id}/screen`, one.name, { wide: true, after: "’s screen" }).show(screen ? this.session.track(screen.mid) : null, true);
      }
    }
    this.tiles.keep(keep);
    this.hear();
    const others = this.look?.participants.length ?? 0;
    this.status(others ? [`${others + 1} in the room`, ...this.left()].join(" · ") : "You are alone in the room");
  }

  /** How many senders of each medium this page has no line for, in words. */
  left() {
    const words = { audio: "not heard", video: "not shown", screen: "screens not shown" };
    return KINDS.flatMap((kind) => (this.look.without_line[kind].length ? [`${this.look.without_line[kind].length} ${words[kind]}`] : []));
  }

  /** A sound element for each line of audio. */
  hear() {
    const lines = new Set((this.look?.lines ?? []).filter((one) => one.medium === "audio").map((one) => one.mid));
    for (const mid of lines) {
      const track = this.session.track(mid);
      let sound = this.sounds.get(mid);
      if (!sound) {
        sound = Object.assign(document.createElement("audio"), { autoplay: true });
        this.sounds.set(mid, sound);
        $("sounds").append(sound);
        if (this.chosen.output) sound.setSinkId(this.chosen.output).catch(() => {});
      }
      if (track && sound.srcObject?.getTracks()[0] !== track) {
        sound.srcObject = new MediaStream([track]);
        sound.play().catch(() => {});
      }
    }
    for (const [mid, sound] of this.sounds) {
      if (!lines.has(mid)) {
        sound.remove();
        this.sounds.delete(mid);
      }
    }
  }

  /** Who speaks, from the levels that senders say (RFC 6464). */
  listen() {
    if (!this.inside || !this.session || this.session.ended || !this.look) return;
    const now = performance.now();
    for (const one of this.look.participants) {
      const line = this.line(one.id, "audio");
      const receiver = line && this.session.pc.getTransceivers().find((each) => each.mid === line.mid)?.receiver;
      const level = receiver?.getSynchronizationSources()[0]?.audioLevel ?? this.seen.get(line?.mid)?.level ?? 0;
      if (level > SPEAKING) this.heard.set(one.id, now);
      this.tiles.all.get(`${one.id}/video`)?.speaking(now - (this.heard.get(one.id) ?? -Infinity) < SPEAKING_MS);
    }
  }

  async measure() {
    const session = this.session;
    if (!this.inside || !session || session.ended) return;
    const stats = await session.pc.getStats();
    if (session !== this.session) return;
    const now = performance.now();
    for (const one of stats.values()) {
      if (one.type === "inbound-rtp" && one.mid !== undefined) this.seen.set(one.mid, inbound(one, this.seen.get(one.mid), now));
      if (one.type === "outbound-rtp" && one.kind === "video") this.sent(one);
      if (one.type === "media-source" && one.kind === "audio" && one.audioLevel !== undefined) this.tiles.all.get("/me")?.speaking(Boolean(this.tracks.audio?.enabled) && one.audioLevel > SPEAKING);
    }
    for (const one of this.look?.participants ?? []) {
      for (const kind of ["video", "screen"]) {
        const shown = this.tiles.all.get(`${one.id}/${kind}`);
        const line = this.line(one.id, kind);
        if (!shown || !one.media[kind]) {
          shown?.tell("");
          continue;
        }
        if (kind === "video" && this.look.tiling) {
          shown.tell(...this.tiledWords(one.id));
          continue;
        }
        const told = this.look.quality.find((each) => each.sender === one.id && each.medium === kind);
        const without = this.look.without_line[kind].includes(one.id) ? ["not shown: this page receives as many streams as it can", "warn"] : ["waiting for its stream", ""];
        shown.tell(...(line ? qualityWords(this.seen.get(line.mid), told) : without));
      }
    }
  }

  /** The words under a tile of a stream that shows many, and how grave they are. */
  tiledWords(id) {
    const tiled = this.tiled(id), { streams, untiled } = this.look.tiling;
    if (!tiled) return [untiled[id] ? `no tile: ${untiled[id]}` : "waiting for its tile", untiled[id] ? "warn" : ""];
    const lines = this.look.lines.filter((one) => one.shows === TILED).length;
    if (!tiled.line) return streams > lines ? [`not shown: there are ${streams} tiled streams, and this page gets ${lines}`, "warn"] : ["waiting for the tiled stream", ""];
    const [words, grave] = qualityWords(this.seen.get(tiled.line.mid));
    return [words ? `in one stream with others: ${words}` : "waiting for the tiled stream", grave];
  }

  sent(one) {
    const mine = this.tiles.all.get("/me");
    if (!mine || !this.tracks.video || !one.frameWidth) return;
    const limits = { bandwidth: "as much as your connection carries", cpu: "as much as your processor manages" };
    const limit = limits[one.qualityLimitationReason];
    mine.tell(`sent: ${one.frameWidth}×${one.frameHeight}, ${Math.round(one.framesPerSecond || 0)} frames/s${limit ? ` · ${limit}` : ""}`, limit ? "warn" : "");
  }

  /** What of the room this browser cannot have, for want of a codec. */
  notice() {
    const words = Object.entries(this.session?.refused ?? {}).map(([kind, codec]) => REFUSED[kind](codec));
    $("notice").hidden = !words.length;
    $("notice").textContent = words.join(" ");
  }

  chooser() {
    $("chooser").hidden = !$("chooser").hidden;
    this.buttons();
  }

  status(words) {
    if ($("status").textContent !== words) $("status").textContent = words;
  }

  trouble(words) {
    $("trouble").hidden = !words;
    if ($("trouble").textContent !== words) $("trouble").textContent = words;
  }

  /** How the session goes, for whoever measures. */
  report() {
    const lines = {};
    for (const one of this.look?.lines ?? []) if (one.shows) lines[`${one.shows}/${one.medium}${one.ssrc ? `/${one.ssrc}` : ""}`] = this.seen.get(one.mid) ?? null;
    return {
      me: this.session?.me ?? null,
      state: this.session?.pc.connectionState ?? "none",
      join_ms: this.times.picture === null ? null : this.times.picture - this.times.clicked,
      participants: (this.look?.participants ?? []).map((one) => one.name),
      speaking: [...this.tiles.all].filter(([, tile]) => tile.element.classList.contains("speaking")).map(([key]) => key),
      quality: this.look?.quality ?? [],
      trouble: $("trouble").hidden ? "" : $("trouble").textContent,
      ...this.counts,
      lines,
    };
  }
}

/** The figures of a stream that comes in, from getStats now and the last time. */
function inbound(one, before, now) {
  const found = {
    at: now, kind: one.kind, packets: one.packetsReceived ?? 0, packetsLost: one.packetsLost ?? 0, bytes: one.bytesReceived ?? 0, width: one.frameWidth, height: one.frameHeight,
    frames: one.framesDecoded ?? 0, dropped: one.framesDropped ?? 0, freezes: one.freezeCount ?? 0, nacks: one.nackCount ?? 0, plis: one.pliCount ?? 0, level: one.audioLevel, lost: 0, bitrate: 0, fps: one.framesPerSecond ?? 0,
    concealed: one.concealedSamples ?? 0, samples: one.totalSamplesReceived ?? 0,
  };
  if (before && now > before.at) {
    const seconds = (now - before.at) / 1000;
    const came = found.packets - before.packets, lost = Math.max(0, found.packetsLost - before.packetsLost);
    found.bitrate = Math.max(0, (8 * (found.bytes - before.bytes)) / seconds);
    if (one.framesPerSecond === undefined) found.fps = (found.frames - before.frames) / seconds;
    found.lost = 0.7 * before.lost + 0.3 * (came + lost > 0 ? lost / (came + lost) : 0);
  }
  return found;
}

const page = new Page();
window.room = page;
$("lobby").addEventListener("submit", (event) => {
  event.preventDefault();
  page.enter();
});
$("mute").addEventListener("click", () => page.mute());
$("camera").addEventListener("click", () => page.camera());
$("screen").addEventListener("click", () => page.share());
$("choose").addEventListener("click", () => page.chooser());
$("leave").addEventListener("click", () => page.leave());
document.addEventListener("keydown", (event) => {
  if ($("controls").hidden || event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
  const act = { m: () => page.mute(), v: () => page.camera(), s: () => page.share(), d: () => page.chooser() }[event.key.toLowerCase()];
  if (act) act();
});
window.addEventListener("pagehide", () => page.session?.leave());
setInterval(() => page.listen(), 200);
setInterval(() => page.measure(), 1000);
page.open();
