// From logits to named classes.

export function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = Array.from(logits, value => Math.exp(value - most));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map(value => value / total);
}

/** The `count` likeliest classes as [index, probability]; of equal ones the first comes first. */
export function top(logits, count) {
  const probabilities = softmax(logits);
  // Ordered by logits: probabilities may be equal where logits are not.
  const order = [...logits.keys()].sort((a, b) => logits[b] - logits[a] || a - b);
  return order.slice(0, count).map(index => [index, probabilities[index]]);
}

/** One class name a line, in the order of the indices; blank lines at the end do not count. */
export const readLabels = text => text.trimEnd().split(/\r?\n/).map(line => line.trim());
