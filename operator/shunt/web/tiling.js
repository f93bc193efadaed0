// The layout of tiled video: of each stream a grid with whose picture is where. Draws what the API says of a tiling, and asks for nothing.
"use strict";

const Tiling = (() => {
  const NAMES = {H261: "H.261", H264: "H.264", H265: "H.265"};
  let drawn = "";

  function element(name, className, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children.map((child) => child instanceof Node ? child : Text.visible(child)));
    return made;
  }

  /** How many tiles a grid of H.265 has side by side: by a tile that is not in its first row, or else the fewest with which it is no higher than wide. */
  function across(stream) {
    const below = stream.tiles.find((tile) => tile.y > 0);
    if (below) return Math.round((below.place - below.x / below.width) / (below.y / below.height));
    const known = stream.tiles.find((tile) => tile.width) || {width: 1, height: 1};
    for (let columns = 1; ; columns++) if (Math.ceil(stream.places / columns) * known.height <= columns * known.width) return columns;
  }

  function tile(place, one) {
    const number = element("span", "place", `${place}`);
    if (!one) return element("li", "empty", number, element("span", "who", "empty"));
    const made = element("li", one.refusal ? "bad" : "", number, element("bdi", "who", one.participant));
    const words = one.refusal || (one.width === null ? "no picture yet" : "");
    if (words) made.append(element("span", "reason", words));
    return made;
  }

  function grid(tiling, stream) {
    const list = element("ol", "layout"), by = new Map(stream.tiles.map((one) => [one.place, one]));
    for (let place = 0; place < stream.places; place++) list.append(tile(place, by.get(place)));
    const width = "minmax(112px, 1fr)";
    if (tiling.codec === "H264") {
      // Columns that are joined one below the other stand side by side here: a screen is not so high.
      list.classList.add("upright");
      list.style.gridTemplateRows = `repeat(${stream.places / (tiling.columns || 1)}, auto)`;
      list.style.gridAutoColumns = width;
    } else {
      list.style.gridTemplateColumns = `repeat(${tiling.codec === "H265" ? across(stream) : 2}, ${width})`;
    }
    return list;
  }

  function streamOf(tiling, stream, number) {
    const id = `stream-${number}`;
    const title = element("h3", "", `Stream ${number + 1} `, element("small", "muted", `SSRC ${stream.ssrc.toString(16).padStart(8, "0")}, ${stream.tiles.length} of ${stream.places} tiles taken`));
    title.id = id;
    const box = element("div", "layouts", grid(tiling, stream));
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-labelledby", id);
    return [title, box];
  }

  function untiled(tiling) {
    if (!tiling.untiled.length) return [];
    return [element("h3", "", "Without a tile"), element("dl", "", ...tiling.untiled.flatMap((one) => [element("dt", "", one.participant), element("dd", "", one.reason)]))];
  }

  /** Who makes it, for whom. receivers: names of those who get tiles. */
  function line(tiling, receivers) {
    const joined = tiling.columns ? `, ${tiling.columns} columns joined in each stream and shown side by side here` : "";
    const got = receivers.length > 12 ? `${receivers.length} participants` : Text.visible(receivers.join(", ")) || "nobody";
    return `${NAMES[tiling.codec]}${joined}; made by ${tiling.mixer ? Text.short(tiling.mixer) : "no mixer"}; got by ${got}.`;
  }

  /** Draw the streams into an element, which keeps its children (and where the keyboard is in them) while they stay the same. */
  function draw(into, tiling) {
    // Counters change all the time, and are not shown.
    const shown = JSON.stringify([tiling.codec, tiling.columns, tiling.streams, tiling.untiled], (key, value) => key === "pictures" || key === "refused" ? undefined : value);
    if (shown === drawn && into.childElementCount) return;
    drawn = shown;
    const at = [...into.querySelectorAll(".layouts")].map((box) => box.scrollLeft), focused = into.contains(document.activeElement) ? document.activeElement.getAttribute("aria-labelledby") : null;
    into.replaceChildren(...tiling.streams.flatMap((stream, number) => streamOf(tiling, stream, number)), ...untiled(tiling));
    into.querySelectorAll(".layouts").forEach((box, number) => { box.scrollLeft = at[number] || 0; });
    if (focused) into.querySelector(`[aria-labelledby="${focused}"]`)?.focus({preventScroll: true});
  }

  return {draw, line};
})();
