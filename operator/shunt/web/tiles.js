// Tiles of a room: a picture, a name, who speaks, and how good the picture is and why. Knows nothing of connections.
"use strict";

/** What a rate is called: bits/s in kbit/s. */
function kbit(rate) {
  return `${Math.round(rate / 1000)} kbit/s`;
}

/**
 * The words under a tile, and how grave they are ("", "warn", "bad").
 * seen: {width, height, fps, bitrate, lost (share of the last seconds), freezes} of getStats; told: the server's {target, targets, layers, estimate, rates, decided_by}, or undefined.
 */
function qualityWords(seen, told) {
  const words = [];
  let grave = "";
  if (told && told.target === null) {
    const least = told.rates[0];
    const why = told.decided_by === "operator" ? "set by the operator" : `your connection does not carry ${least ? `its lowest layer, ${kbit(least)}` : "it"}` + (told.estimate === null ? "" : `; the estimate is ${kbit(told.estimate)}`);
    return [`paused: ${why}`, "bad"];
  }
  if (seen && seen.width) words.push(`${seen.width}×${seen.height}, ${Math.round(seen.fps || 0)} frames/s, ${kbit(seen.bitrate || 0)}`);
  if (told && told.layers && told.target < told.targets - 1) {
    const next = told.rates[told.target + 1];
    const why = told.decided_by === "operator" ? "set by the operator" : told.estimate === null ? "no estimate yet" : `your connection carries ${kbit(told.estimate)}` + (next ? `, the next layer needs ${kbit(next)}` : "");
    words.push(`layer ${told.target + 1} of ${told.targets}: ${why}`);
    grave = "warn";
  } else if (told && told.estimate !== null) {
    words.push(`all of it: your connection carries ${kbit(told.estimate)}`);
  }
  if (seen && seen.lost > 0.005) {
    words.push(`${(100 * seen.lost).toFixed(1)} % lost`);
    grave = seen.lost > 0.05 ? "bad" : "warn";
  }
  if (seen && seen.freezes) words.push(`${seen.freezes} freeze${seen.freezes === 1 ? "" : "s"}`);
  return [words.join(" · "), grave];
}

/** The first character of a name as a reader sees it: a letter with its accents, or a whole emoji. */
function initial(name) {
  const characters = Intl.Segmenter ? [...new Intl.Segmenter().segment(name)].map((one) => one.segment) : [...name];
  return characters[0]?.toLocaleUpperCase() ?? "?";
}

/** An element's place in its parent, in percent. */
function put(element, place) {
  for (const [edge, share] of Object.entries(place)) element.style[edge] = `${100 * share}%`;
}

/** One tile. name: whose it is, in any direction of writing; after: the words that follow it. */
class Tile {
  constructor(name, { me = false, wide = false, after = "" } = {}) {
    this.element = document.createElement("figure");
    this.element.className = `tile${me ? " me" : ""}${wide ? " wide" : ""}`;
    this.video = document.createElement("video");
    Object.assign(this.video, { autoplay: true, muted: true, playsInline: true });
    this.frame = document.createElement("div");
    this.frame.className = "frame";
    this.frame.hidden = true;
    this.frame.append(this.video);
    this.part = null;
    this.video.addEventListener("resize", () => this.cut());
    this.absent = document.createElement("div");
    this.absent.className = "absent";
    this.absent.setAttribute("aria-hidden", "true");
    this.absent.textContent = initial(name);
    const caption = document.createElement("figcaption");
    this.name = Object.assign(document.createElement("span"), { className: "name" });
    this.name.append(Object.assign(document.createElement("bdi"), { textContent: name }), after);
    this.badge = Object.assign(document.createElement("span"), { className: "badge" });
    this.quality = Object.assign(document.createElement("span"), { className: "quality" });
    caption.append(this.name, this.badge, this.quality);
    this.element.append(this.frame, this.absent, caption);
    this.video.setAttribute("aria-label", name + after);
    this.track = null;
    this.onfirst = null;
  }

  /** Show a track, or none. part: {x, y, width, height} of its pictures, where many share them; null: all of them. */
  show(track, visible, part = null) {
    if (track !== this.track) {
      this.track = track;
      this.video.srcObject = track ? new MediaStream([track]) : null;
      if (track) this.awaitPicture();
    }
    this.frame.hidden = !(track && visible);
    this.absent.hidden = !this.frame.hidden;
    this.part = part;
    this.cut();
  }

  /** The frame shows the part alone: the video is as much larger, and moved behind it. */
  cut() {
    const { part, video, frame } = this;
    frame.classList.toggle("part", Boolean(part));
    if (!part) {
      frame.style.aspectRatio = "";
      for (const edge of ["left", "top", "width", "height"]) video.style[edge] = "";
    } else if (video.videoWidth) {
      frame.style.aspectRatio = `${part.width} / ${part.height}`;
      put(video, { left: -part.x / part.width, top: -part.y / part.height, width: video.videoWidth / part.width, height: video.videoHeight / part.height });
    }
  }

  /** Say once that a picture is on the screen. */
  awaitPicture() {
    const seen = () => this.onfirst && this.onfirst();
    if (this.video.requestVideoFrameCallback) this.video.requestVideoFrameCallback(seen);
    else this.video.addEventListener("loadeddata", seen, { once: true });
    this.video.play().catch(() => {});
  }

  speaking(does) {
    this.element.classList.toggle("speaking", does);
  }

  tell(words, grave = "") {
    if (this.quality.textContent !== words) this.quality.textContent = words;
    this.quality.className = `quality ${grave}`;
  }

  note(words) {
    if (this.badge.textContent !== words) this.badge.textContent = words;
  }
}

/** All tiles, by key; those that are not asked for again go. */
class Tiles {
  constructor(element) {
    this.element = element;
    this.all = new Map();
  }

  /** The tile of a key, made where there is none. */
  of(key, name, options) {
    let tile = this.all.get(key);
    if (!tile) {
      tile = new Tile(name, options);
      this.all.set(key, tile);
      this.element.append(tile.element);
    }
    return tile;
  }

  keep(keys) {
    for (const [key, tile] of this.all) {
      if (!keys.has(key)) {
        tile.show(null, false);
        tile.element.remove();
        this.all.delete(key);
      }
    }
  }
}
