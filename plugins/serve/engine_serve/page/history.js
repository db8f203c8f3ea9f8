// A sample of each version's counts a second, and what came between two samples.

const MOST = 120;

export const keyOf = (model) => JSON.stringify([model.name, model.version ?? ""]);

/** Return the latency below which a part of the requests lie; null where there are none. */
export function quantile(buckets, part) {
  const total = buckets.reduce((sum, [, count]) => sum + count, 0);
  let below = 0;
  for (const [milliseconds, count] of buckets) {
    below += count;
    if (count && below >= part * total) return milliseconds;
  }
  return null;
}

function difference(now, before) {
  const counts = new Map(before);
  return now.map(([end, count]) => [end, count - (counts.get(end) ?? 0)]);
}

const sum = (buckets) => buckets.reduce((total, [, count]) => total + count, 0);

/** Samples of all versions, by key: the newest last, as many seconds back as the plots show. */
export class History {
  #samples = new Map();
  #last = new Map();

  /** Note the state of the server, read at a moment in milliseconds. */
  add(models, moment) {
    for (const model of models) {
      if (!model.latency_ms) continue;
      const key = keyOf(model);
      const last = this.#last.get(key);
      this.#last.set(key, { moment, buckets: model.latency_ms });
      // A model that was loaded anew counts from 0.
      if (!last || sum(last.buckets) > sum(model.latency_ms)) continue;
      const between = difference(model.latency_ms, last.buckets);
      const seconds = (moment - last.moment) / 1000;
      const samples = this.#samples.get(key) ?? [];
      samples.push({
        moment,
        rate: sum(between) / seconds,
        p50: quantile(between, 0.5),
        p99: quantile(between, 0.99),
        waiting: model.waiting,
        running: model.running,
      });
      this.#samples.set(key, samples.slice(-MOST));
    }
  }

  of(key) {
    return this.#samples.get(key) ?? [];
  }
}
