// Stands before the theme's script of the search worker, and so hears of messages first.
addEventListener("message", ({ data: message }) => {
  // Lunr writes the ids of nodes right behind characters, and takes two nodes for one where a character is a digit.
  lunr.TokenSet.prototype.toString = function () {
    const edges = Object.entries(this.edges).map(([character, node]) => `${character}${node.id} `);
    return this._str || `${this.final} ${edges.sort().join("")}`;
  };
  if (typeof message.data !== "string") return;
  // Only the words are left of a query, as a pasted command has characters that are operators of Lunr.
  const words = message.data.split(/[\W_]+/).filter(Boolean);
  const asked = words.filter((word, at) => at + 1 === words.length || lunr.stopWordFilter(word.toLowerCase()));
  // The theme has each word stand for all that begin with it: the word itself counts more, and a letter alone beside others.
  message.data = asked.map((word) => `${word.length > 1 || asked.length < 2 ? word : ""} ${word}^3`).join(" ");
});
