// Contributions of patches from scores of masked images: inside/contributions.py once more, with the same numbers.
// A matrix is { rows, columns, data }, row by row, in double precision.
//
// Shapes: m masks · n patches · p fixed effects

function matrix(rows, columns, value = () => 0) {
  const data = new Float64Array(rows * columns);
  for (let i = 0, at = 0; i < rows; i++) for (let j = 0; j < columns; j++) data[at++] = value(i, j);
  return { rows, columns, data };
}

function times(a, b) {
  const found = matrix(a.rows, b.columns);
  for (let i = 0; i < a.rows; i++) {
    for (let k = 0; k < a.columns; k++) {
      const value = a.data[i * a.columns + k];
      if (value === 0) continue;
      for (let j = 0, from = k * b.columns, to = i * b.columns; j < b.columns; j++) found.data[to + j] += value * b.data[from + j];
    }
  }
  return found;
}

const turned = (a) => matrix(a.columns, a.rows, (i, j) => a.data[j * a.columns + i]);
const column = (values) => ({ rows: values.length, columns: 1, data: Float64Array.from(values) });
const sum = (values) => values.reduce((a, b) => a + b, 0);
const squares = ({ columns, data }, row) => {
  let total = 0;
  for (let i = row * columns; i < (row + 1) * columns; i++) total += data[i] * data[i];
  return total;
};
const dot = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);

// the lower triangle whose square is a positive matrix
function cholesky(a) {
  const { rows: n, data } = a, found = matrix(n, n), l = found.data;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      let left = data[i * n + j];
      for (let k = 0; k < j; k++) left -= l[i * n + k] * l[j * n + k];
      l[i * n + j] = i === j ? Math.sqrt(left) : left / l[j * n + j];
    }
  }
  return found;
}

// eigenvalues and eigenvectors (columns) of a symmetric matrix, by rotations of two axes at a time (Jacobi)
export function eigen(symmetric) {
  const { rows: n } = symmetric, a = symmetric.data.slice(), vectors = matrix(n, n, (i, j) => Number(i === j)), v = vectors.data;
  const total = Math.sqrt(sum(a.map((value) => value * value)));
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) off += a[i * n + j] ** 2;
    if (Math.sqrt(off) <= 1e-14 * total) break;
    for (let p = 0; p < n; p++) {
      for (let q = p + 1; q < n; q++) {
        const apart = a[p * n + q];
        if (Math.abs(apart) <= 1e-300) continue;
        const angle = (a[q * n + q] - a[p * n + p]) / (2 * apart);
        const tangent = (angle >= 0 ? 1 : -1) / (Math.abs(angle) + Math.sqrt(angle * angle + 1));
        const c = 1 / Math.sqrt(tangent * tangent + 1), s = tangent * c;
        for (let k = 0; k < n; k++) {
          const x = a[k * n + p], y = a[k * n + q];
          a[k * n + p] = c * x - s * y;
          a[k * n + q] = s * x + c * y;
        }
        for (let k = 0; k < n; k++) {
          const x = a[p * n + k], y = a[q * n + k];
          a[p * n + k] = c * x - s * y;
          a[q * n + k] = s * x + c * y;
          const u = v[k * n + p], w = v[k * n + q];
          v[k * n + p] = c * u - s * w;
          v[k * n + q] = s * u + c * w;
        }
      }
    }
  }
  return { values: Float64Array.from({ length: n }, (_, i) => a[i * n + i]), vectors };
}

export class Contributions {
  // `grid` is rows and columns of patches; the constants are those of inside/contributions.py
  constructor(grid, { reaches, noises, floor, leastWeight, leastLeft }) {
    Object.assign(this, { grid, reaches, noises, floor, leastWeight, leastLeft });
    const n = grid[0] * grid[1], unit = 14 / Math.max(...grid);
    const apart = matrix(n, n, (i, j) => unit * Math.hypot(Math.floor(i / grid[1]) - Math.floor(j / grid[1]), (i % grid[1]) - (j % grid[1])));
    this.roots = reaches.map((reach) => cholesky(matrix(n, n, (i, j) => (Math.exp(-apart.data[i * n + j] / (reach / 2)) + Math.exp(-apart.data[i * n + j] / (reach * 2))) / 2)));
  }

  // mean and standard deviation of contributions [n] from masks [m][n] of one kind, log-odds [m] and a prior map [n]
  fit(masks, scores, prior) {
    const mean = sum(prior) / prior.length, helpful = prior.some((value) => value !== mean) && masks.length > 3;
    const fits = [];
    let expected = scores;
    for (let turn = 0; turn < 2; turn++) { // weights by the scores themselves prefer noise towards 0; the second time they are by the fit
      const weights = Float64Array.from(expected, (score) => {
        const probability = 1 / (1 + Math.exp(-score));
        return Math.sqrt(Math.max(probability * (1 - probability), this.leastWeight));
      });
      const seen = matrix(masks.length, prior.length, (i, j) => weights[i] * masks[i][j]), scored = weights.map((weight, i) => weight * scores[i]);
      const known = helpful ? times(seen, column(prior)).data : null;
      const found = this.once(known ? [weights, known] : [weights], seen, scored, prior, known !== null) ?? this.once([weights], seen, scored, prior, false); // the prior map is wrong: it is left out, not turned around
      fits.push(found);
      expected = found.fitted.map((value, i) => value / weights[i]);
    }
    const variance = fits[0].variance.map((value, i) => Math.max(value, fits[1].variance[i], 0));
    return { map: fits[0].mean, error: variance.map(Math.sqrt) }; // the first mean ranks patches better; either variance may be too small, rarely both
  }

  // mean and variance [n] and the fitted scores [m]; null if the prior map, the last of the fixed effects, has no weight
  once(fixed, seen, scored, prior, helpful) {
    const { basis, solve } = orthogonal(fixed), found = this.likeliest(basis, fixed.length, seen, scored, prior);
    let { mean, smoother } = found;
    const left = times(seen, column(mean)).data.map((value, i) => scored[i] - value);
    const effects = solve.map((row) => dot(row, left));
    const fitted = scored.map((value, i) => value - left[i] + effects.reduce((total, effect, p) => total + effect * fixed[p][i], 0));
    const n = prior.length, m = scored.length, { covariance } = found;
    let more = (i) => covariance.own(i);
    if (helpful) {
      const last = effects.length - 1;
      if (effects[last] <= 0) return null;
      const along = times({ rows: 1, columns: m, data: solve[last] }, seen).data; // [n]: what the prior's weight makes of contributions
      const slanted = covariance.times(along), own = dot(along, slanted) + found.noise * dot(solve[last], solve[last]);
      more = (i) => covariance.own(i) - 2 * prior[i] * slanted[i] + prior[i] ** 2 * own;
      const taken = times({ rows: 1, columns: n, data: along }, smoother).data; // [m]
      smoother = matrix(n, m, (i, j) => smoother.data[i * m + j] + prior[i] * (solve[last][j] - taken[j]));
      mean = mean.map((value, i) => value + effects[last] * prior[i]);
    }
    const surprise = scored.map((value, i) => (value - fitted[i]) ** 2 / Math.max(1 - found.within[i], this.leastLeft) - found.noise);
    const variance = Float64Array.from({ length: n }, (_, i) => {
      let noisy = 0;
      for (let j = 0; j < m; j++) noisy += smoother.data[i * m + j] ** 2 * surprise[j];
      return more(i) + noisy;
    });
    return { mean, variance, fitted };
  }

  // the posterior under the likeliest reach and noise, whatever the fixed effects
  likeliest(basis, effects, seen, scored, prior) {
    const { rows: m, columns: n } = seen, { noises } = this, free = Math.max(m - effects, 1), spread = this.spread(prior);
    const left = scored.slice(), design = { ...seen, data: seen.data.slice() };
    for (const axis of basis) {
      const share = dot(axis, scored), along = times({ rows: 1, columns: m, data: axis }, seen).data;
      for (let i = 0; i < m; i++) {
        left[i] -= share * axis[i];
        for (let j = 0; j < n; j++) design.data[i * n + j] -= axis[i] * along[j];
      }
    }
    const square = dot(left, left), scaled = { ...design, data: design.data.map((value, at) => value * spread[at % n]) };
    let highest = -Infinity, best = null;
    for (const reach of this.roots) {
      const rooted = times(scaled, reach), { values, vectors } = axes(rooted); // [m n]
      const along = times(turned(vectors), times(turned(rooted), column(left))).data;
      const variances = noises.map((noise) => Math.max(square - values.reduce((total, value, i) => total + along[i] ** 2 / (value + noise), 0), 1e-300) / free);
      const likely = noises.map((noise, k) => -0.5 * (free * Math.log(variances[k]) + values.reduce((total, value) => total + Math.log1p(value / noise), 0)));
      const most = Math.max(...likely);
      if (!(most > highest)) continue;
      highest = most;
      best = { reach, rooted, values, vectors, variances, likely, most };
    }
    const { reach, rooted, values, vectors, variances, likely, most } = best, r = values.length;
    const root = matrix(n, n, (i, j) => spread[i] * reach.data[i * n + j]), rotated = times(root, vectors); // [n r]
    const chances = likely.map((value) => Math.exp(value - most)), whole = sum(chances), noise = noises[likely.indexOf(most)];
    const scale = noises.map((each, k) => ((chances[k] / whole) * variances[k]) / each), total = sum(scale);
    const smoother = times(matrix(n, r, (i, j) => rotated.data[i * r + j] / (values[j] + noise)), times(turned(vectors), turned(rooted))); // [n m]
    const kept = values.map((value) => noises.reduce((part, each, k) => part + (scale[k] * value) / (value + each), 0));
    const within = Float64Array.from({ length: m }, (_, i) => {
      let own = basis.reduce((part, axis) => part + axis[i] ** 2, 0);
      for (let j = 0; j < n; j++) own += design.data[i * n + j] * smoother.data[j * m + i];
      return own;
    });
    const covariance = { // root rootᵀ · total − rotated · kept · rotatedᵀ, which is never written out
      own: (i) => total * squares(root, i) - kept.reduce((part, value, j) => part + value * rotated.data[i * r + j] ** 2, 0),
      times: (vector) => {
        const wide = times(root, times(turned(root), column(vector))).data, narrow = times(turned(rotated), column(vector)).data;
        const less = times(rotated, column(narrow.map((value, j) => value * kept[j]))).data;
        return wide.map((value, i) => total * value - less[i]);
      },
    };
    return { mean: times(smoother, column(left)).data, covariance, smoother, within, noise: noises.reduce((part, _, k) => part + (chances[k] / whole) * variances[k], 0) };
  }

  // standard deviations of contributions that a prior map suggests: [n], 1 in the mean square
  spread(prior) {
    const height = Float64Array.from(prior, (value) => Math.max(value, 0)), mean = sum(height) / height.length;
    if (!height.some((value) => value > 0)) return height.fill(1);
    const variance = height.map((value) => value / mean + this.floor), middle = sum(variance) / variance.length;
    return variance.map((value) => Math.sqrt(value / middle));
  }
}

// orthogonal axes of one or two vectors, and the rows of their pseudo-inverse
function orthogonal(vectors) {
  const basis = [];
  for (const vector of vectors) {
    const left = vector.slice();
    for (let turn = 0; turn < 2; turn++) for (const axis of basis) {
      const share = dot(axis, left);
      left.forEach((value, i) => { left[i] = value - share * axis[i]; });
    }
    const length = Math.sqrt(dot(left, left));
    basis.push(left.map((value) => value / length));
  }
  if (vectors.length === 1) return { basis, solve: [vectors[0].map((value) => value / dot(vectors[0], vectors[0]))] };
  const [a, b] = vectors, second = basis[1].map((value) => value / dot(basis[1], b));
  const share = dot(a, b) / dot(a, a);
  return { basis, solve: [a.map((value, i) => value / dot(a, a) - share * second[i]), second] };
}

// squared singular values of a matrix [m n] that are not 0, and its right vectors [n r]
function axes(design) {
  const { rows: m, columns: n } = design, few = m < n, { values, vectors } = eigen(few ? times(design, turned(design)) : times(turned(design), design));
  const most = Math.max(...values), order = [...values.keys()].filter((i) => values[i] > 1e-12 * most).sort((a, b) => values[a] - values[b]);
  const here = matrix(vectors.rows, order.length, (i, j) => vectors.data[i * vectors.columns + order[j]]);
  const kept = Float64Array.from(order, (i) => values[i]);
  if (!few) return { values: kept, vectors: here };
  const found = times(turned(design), here);
  return { values: kept, vectors: matrix(n, order.length, (i, j) => found.data[i * order.length + j] / Math.sqrt(kept[j])) };
}
