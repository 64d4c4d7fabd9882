// The official JavaScript client, unmodified. Arguments: base URL, model, key, package folder.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [baseURL, model, apiKey, folder] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { default: OpenAI } = require("openai");
const { version } = JSON.parse(readFileSync(`${folder}/node_modules/openai/package.json`, "utf8"));
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Name a fruit." }];
const chat = (fields) =>
  client.chat.completions.create({ model, messages, max_tokens: 12, ...fields });
const complete = (fields) =>
  client.completions.create({ model, prompt: "The sea is", max_tokens: 12, ...fields });

async function gathered(stream, pick) {
  const texts = [];
  for await (const chunk of stream) {
    for (const choice of chunk.choices) {
      texts[choice.index] = (texts[choice.index] ?? "") + (pick(choice) ?? "");
    }
  }
  return texts;
}

async function refused(kind, param, call) {
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof kind, `${param}: expected ${kind.name}, found ${error}`);
    if (param !== null) assert.ok(String(error.param).startsWith(param), `${param}: ${error.param}`);
    assert.ok(error.type && error.code, `${error}`);
    assert.ok(error.requestID, "an id of the request");
    return true;
  });
}

async function running() {
  const text = await (await fetch(`${baseURL}/metrics`)).text();
  return Number(/^chorus_num_requests_running\{[^}]*\} (\S+)$/m.exec(text)[1]);
}

const checks = {
  async models() {
    const ids = [];
    for await (const each of client.models.list()) ids.push(each.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
    await refused(OpenAI.NotFoundError, "model", () => client.models.retrieve("another"));
  },
  async "chat, whole and streamed"() {
    for (const n of [1, 3]) {
      const whole = await chat({ seed: 5, n });
      const stream = await chat({ seed: 5, n, stream: true });
      const texts = await gathered(stream, (choice) => choice.delta.content);
      assert.deepEqual(texts, whole.choices.map((choice) => choice.message.content));
    }
  },
  async "the runner of streams"() {
    const runner = client.chat.completions.stream({
      model, messages, max_tokens: 8, seed: 3, stream_options: { include_usage: true },
    });
    let text = "";
    runner.on("content", (delta) => { text += delta; });
    const final = await runner.finalChatCompletion();
    assert.equal(text, final.choices[0].message.content ?? "");
    assert.ok(final.usage.total_tokens > 0);
  },
  async logprobs() {
    const done = await chat({ logprobs: true, top_logprobs: 2, temperature: 0 });
    for (const token of done.choices[0].logprobs.content) {
      assert.equal(token.top_logprobs.length, 2);
      assert.equal(token.logprob, token.top_logprobs[0].logprob);
    }
    const echo = await complete({ echo: true, logprobs: 1, max_tokens: 0 });
    assert.equal(echo.choices[0].logprobs.token_logprobs[0], null);
    assert.equal(echo.choices[0].text, "The sea is");
  },
  async completions() {
    const whole = await complete({ seed: 9, n: 2 });
    const stream = await complete({ seed: 9, n: 2, stream: true });
    const texts = await gathered(stream, (choice) => choice.text);
    assert.deepEqual(texts, whole.choices.map((choice) => choice.text));
  },
  async stop() {
    const { text } = (await complete({ temperature: 0, max_tokens: 24 })).choices[0];
    const stop = text.slice(4, 7);
    const cut = (await complete({ temperature: 0, max_tokens: 24, stop })).choices[0];
    assert.equal(cut.text, text.slice(0, text.indexOf(stop)));
    assert.equal(cut.finish_reason, "stop");
  },
  async seeds() {
    const of = async (seed) => (await complete({ seed, temperature: 1.2 })).choices[0].text;
    assert.equal(await of(1), await of(1));
    assert.notEqual(await of(1), await of(2));
  },
  async refusals() {
    const bad = OpenAI.BadRequestError;
    await refused(bad, "temperature", () => chat({ temperature: -1 }));
    await refused(bad, "n", () => chat({ n: 0 }));
    await refused(bad, "tools", () =>
      chat({ tools: [{ type: "function", function: { name: "f", parameters: {} } }] }));
    await refused(bad, "response_format", () => chat({ response_format: { type: "json_object" } }));
    await refused(OpenAI.NotFoundError, "model", () => chat({ model: "another" }));
    await refused(bad, null, () => client.responses.create({ model, input: "a" }));
    const stranger = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "wrong", maxRetries: 0 });
    await refused(OpenAI.AuthenticationError, null, () => stranger.models.list());
  },
  async "leaving in mid-stream"() {
    for (const leave of ["break", "abort"]) {
      const stream = await chat({ stream: true, max_tokens: 400, ignore_eos: true });
      let number = 0;
      for await (const _ of stream) {
        if (++number < 5) continue;
        if (leave === "break") break;
        stream.controller.abort();
      }
      const until = Date.now() + 60_000;
      while ((await running()) > 0) {
        assert.ok(Date.now() < until, "it still runs");
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    }
  },
};

console.error(`openai ${version} from npm, Node ${process.version}`);
let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.error(`  ok: ${name}`);
  } catch (error) {
    failed += 1;
    console.error(`  FAILED: ${name}: ${error.stack ?? error}`);
  }
}
process.exit(failed === 0 ? 0 : 1);
