// This code precedes the theme's script of the search worker, so it receives messages first.
addEventListener("message", ({ data: message }) => {
  // Lunr writes the ids of nodes directly after characters. If a character is a digit, two nodes may get the same text.
  lunr.TokenSet.prototype.toString = function () {
    const edges = Object.entries(this.edges).map(([character, node]) => `${character}${node.id} `);
    return this._str || `${this.final} ${edges.sort().join("")}`;
  };
  if (typeof message.data !== "string") return;
  // Keep only the words of a query, because a pasted command may contain operators of Lunr.
  const words = message.data.split(/[\W_]+/).filter(Boolean);
  const terms = words.filter((word, i) => i + 1 === words.length || lunr.stopWordFilter(word.toLowerCase()));
  // The theme searches for all words that begin with a term. Exact matches get a higher weight, and a single letter among
  // other terms matches only exactly.
  message.data = terms.map((word) => `${word.length > 1 || terms.length < 2 ? word : ""} ${word}^3`).join(" ");
});
