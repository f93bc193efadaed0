// Text from the network as the page shows it, and how much of it fits.
"use strict";

const Text = (() => {
  // Controls, overrides of the direction of writing, private and broken characters. Joiners stay: scripts need them.
  const HIDDEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cs}]/gu;
  const SOCKET = /(?:unix:)?(?:\/[^\s/:,;()]+)*\/([^\s/:,;()]+)\.sock\b/g;
  const pen = document.createElement("canvas").getContext("2d");

  /** The text with what cannot be seen, or changes the order of the rest, as \uXXXX. */
  const visible = (text) => String(text).replace(HIDDEN, (found) => `\\u${found.codePointAt(0).toString(16).padStart(4, "0")}`);

  /** A text of the API with only the names of sockets. */
  const short = (text) => visible(text).replace(SOCKET, "$1");

  /** The same as a sentence. */
  function sentence(text) {
    const words = short(text);
    return `${words.slice(0, 1).toUpperCase()}${words.slice(1)}${!words || /[.!?]$/.test(words) ? "" : "."}`;
  }

  function width(text, font) {
    pen.font = font;
    return pen.measureText(text).width;
  }

  /** As much of a text as fits into a number of pixels. font: as of CSS. */
  function cut(text, room, font) {
    if (width(text, font) <= room) return text;
    const letters = Array.from(text);
    let [fits, not] = [0, letters.length];
    while (not - fits > 1) {
      const middle = (fits + not) >> 1;
      if (width(`${letters.slice(0, middle).join("")}…`, font) <= room) fits = middle;
      else not = middle;
    }
    return `${letters.slice(0, fits).join("")}…`;
  }

  return {visible, short, sentence, width, cut};
})();
