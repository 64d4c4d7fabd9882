"use strict";
// What the server is doing, from its metrics and its list of sessions.

const kLiveMs = 2000;       // between looks,
const kLiveMostMs = 30000;  // and where the server does not answer
const kNumRates = 60;       // looks that the chart shows

// The samples of a Prometheus text: name, without its prefix, -> [{labels, value}]
function parseMetrics(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const sample = /^(?:chorus_|vllm:)?([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!sample || line.startsWith("#")) continue;
    const labels = {};
    for (const [, name, value] of (sample[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value;
    }
    if (!metrics.has(sample[1])) metrics.set(sample[1], []);
    metrics.get(sample[1]).push({labels, value: Number(sample[3])});
  }
  return metrics;
}

// The sum of a metric's samples that have these labels; undefined where there is none.
function metric(metrics, name, labels = {}) {
  const samples = (metrics.get(name) ?? [])
    .filter((sample) => Object.entries(labels)
      .every(([key, value]) => sample.labels[key] === value));
  return samples.length > 0 ? samples.reduce((sum, sample) => sum + sample.value, 0) : undefined;
}

// Two readings a while apart -> what a person looks at. Rates are tokens a second.
function loadOf(now, before, elapsedMs) {
  const rate = (name) => {
    const difference = before ? metric(now, name) - metric(before, name) : NaN;
    return difference >= 0 ? difference / elapsedMs * 1000 : null;  // else it is another server
  };
  return {
    running: metric(now, "num_requests_running"),
    waiting: metric(now, "num_requests_waiting"),
    sessions: metric(now, "sessions"),
    held: metric(now, "kv_blocks", {state: "held"}),
    cached: metric(now, "kv_blocks", {state: "cached"}),
    free: metric(now, "kv_blocks", {state: "free"}),
    generated: rate("generation_tokens_total"),
    computed: rate("computed_tokens_total"),
    queried: metric(now, "prefix_cache_queries_total"),
    hits: metric(now, "prefix_cache_hits_total"),
    preemptions: metric(now, "num_preemptions_total"),
    evictions: metric(now, "evictions_total"),
  };
}

// Looks now and then while the page is seen. `wantsSessions` says whether somebody looks at the
// list; onLook gets {load, sessions, error}.
class LiveView {
  constructor(wantsSessions, onLook) {
    this.wantsSessions = wantsSessions;
    this.onLook = onLook;
    this.rates = [];
    this.wait = kLiveMs;
    this.timer = 0;
    this.isLooking = false;
    document.addEventListener("visibilitychange", () => this.lookSoon());
    window.addEventListener("online", () => this.lookSoon());
  }

  lookSoon() {
    clearTimeout(this.timer);
    if (!document.hidden && !this.isLooking) this.look();
  }

  async look() {
    this.isLooking = true;
    const seen = {load: null, sessions: null, error: null};
    try {
      seen.load = await this.load();
      if (this.wantsSessions()) seen.sessions = (await requestJson(kSessionsPath)).data;
      this.wait = kLiveMs;
    } catch (error) {
      seen.error = error;
      this.wait = Math.min(this.wait * 2, kLiveMostMs);
      this.before = null;
    }
    this.isLooking = false;
    clearTimeout(this.timer);
    if (!document.hidden) this.timer = setTimeout(() => this.look(), this.wait);
    this.onLook(seen);
  }

  // null where the server has no metrics.
  async load() {
    let text = "";
    try {
      text = await (await request("metrics")).text();
    } catch (error) {
      if (error.status !== 404) throw error;
      await request("health");
      return null;
    }
    const now = parseMetrics(text);
    const time = performance.now();
    const load = loadOf(now, this.before, time - this.time);
    this.before = now;
    this.time = time;
    if (load.generated !== null) {
      this.rates.push(load.generated);
      if (this.rates.length > kNumRates) this.rates.shift();
    }
    return load;
  }
}
