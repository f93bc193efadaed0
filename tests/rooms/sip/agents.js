// SIP user agents of two libraries behind one interface, used as their documents say. A call gets one description for each medium that it sends, and
// `more` descriptions of each that bring one further sender.
"use strict";

const agents = {};

class Jssip {
  constructor(server, domain, name) {
    this.domain = domain;
    this.ua = new JsSIP.UA({ sockets: [new JsSIP.WebSocketInterface(server)], uri: `sip:${name}@${domain}`, register: false, connection_recovery_min_interval: 1 });
    this.connections = 0;
    this.ua.on("connected", () => this.connections++);
    this.ua.start();
  }
  call(room, more) {
    return new Promise((resolve) => {
      const session = (this.session = this.ua.call(`sip:${room}@${this.domain}`, { mediaConstraints: { audio: true, video: true }, pcConfig: { iceServers: [] } }));
      session.on("connecting", () => further(session.connection, more));
      session.on("confirmed", () => resolve("confirmed"));
      session.on("failed", (event) => resolve(`${event.cause}: ${event.message?.status_code ?? ""} ${event.message?.getHeader?.("Warning") ?? ""}`));
      session.on("ended", (event) => (this.ended = event.cause));
    });
  }
  get pc() {
    return this.session.connection;
  }
  #then(work) {
    return new Promise((resolve) => work(() => resolve("done")) || resolve("refused"));
  }
  hold(useUpdate) {
    return this.#then((done) => this.session.hold({ useUpdate }, done));
  }
  unhold(useUpdate) {
    return this.#then((done) => this.session.unhold({ useUpdate }, done));
  }
  offerAgain(useUpdate) {
    return this.#then((done) => this.session.renegotiate({ useUpdate }, done));
  }
  hangUp() {
    const ended = new Promise((resolve) => this.session.on("ended", () => resolve("ended")));
    this.session.terminate();
    return ended;
  }
}

class Sipjs {
  constructor(server, domain, name) {
    this.domain = domain;
    const own = this;
    class Handler extends SIP.Web.SessionDescriptionHandler {
      async getLocalMediaStream(options) {
        await super.getLocalMediaStream(options);
        further(this.peerConnection, own.more);
      }
    }
    this.ua = new SIP.UserAgent({
      uri: SIP.UserAgent.makeURI(`sip:${name}@${domain}`),
      transportOptions: { server },
      reconnectionAttempts: 30,
      reconnectionDelay: 1,
      sessionDescriptionHandlerFactory: (session) =>
        new Handler(session.userAgent.getLogger("media"), SIP.Web.defaultMediaStreamFactory(), { iceGatheringTimeout: 500, peerConnectionConfiguration: { iceServers: [] } }),
    });
    this.connections = 0;
    this.ua.delegate = { onConnect: () => this.connections++ };
    this.started = this.ua.start();
  }
  async call(room, more) {
    await this.started;
    this.more = more;
    this.session = new SIP.Inviter(this.ua, SIP.UserAgent.makeURI(`sip:${room}@${this.domain}`), { sessionDescriptionHandlerOptions: { constraints: { audio: true, video: true } } });
    return new Promise((resolve) => {
      this.session.stateChange.addListener((state) => {
        if (state === SIP.SessionState.Established) resolve("confirmed");
        if (state === SIP.SessionState.Terminated) this.ended = "terminated";
      });
      this.session.invite({ requestDelegate: { onReject: ({ message }) => resolve(`${message.statusCode} ${message.getHeader("Warning")}`) } });
    });
  }
  get pc() {
    return this.session.sessionDescriptionHandler.peerConnection;
  }
  #invite(options) {
    this.session.sessionDescriptionHandlerOptionsReInvite = options;
    return new Promise((resolve) => {
      const requestDelegate = { onAccept: () => resolve("done"), onReject: ({ message }) => resolve(`refused: ${message.statusCode}`) };
      this.session.invite({ requestDelegate }).catch((error) => resolve(String(error)));
    });
  }
  hold() {
    return this.#invite({ hold: true });
  }
  unhold() {
    return this.#invite({ hold: false });
  }
  offerAgain() {
    return this.#invite({});
  }
  hangUp() {
    const ended = new Promise((resolve) => this.session.stateChange.addListener((state) => state === SIP.SessionState.Terminated && resolve("ended")));
    this.session.bye();
    return ended;
  }
}

function further(pc, more) {
  for (const [kind, count] of Object.entries(more)) {
    const there = pc.getTransceivers().filter((one) => one.receiver.track.kind === kind).length;
    for (let number = there; number <= count; number++) pc.addTransceiver(kind, { direction: "recvonly" });
  }
}

// What comes in, by its m-line: packets, frames, loudness. What is muted is counted by who gets it.
async function received(agent) {
  const found = {};
  for (const one of (await agent.pc.getStats()).values())
    if (one.type === "inbound-rtp") found[one.mid] = { kind: one.kind, packets: one.packetsReceived, lost: one.packetsLost, frames: one.framesDecoded ?? 0, width: one.frameWidth ?? 0 };
  return found;
}

function play(agent) {
  for (const { receiver } of agent.pc.getTransceivers())
    if (receiver.track.kind === "video") Object.assign(document.body.appendChild(document.createElement("video")), { muted: true, autoplay: true, srcObject: new MediaStream([receiver.track]) });
}
