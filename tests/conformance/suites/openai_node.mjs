// /// script
// requires-node = ">=20"
// dependencies = ["openai@7.57.0"]
// ///
// OpenAI's Node client: chat, completions, streams, the stream helper, tools, JSON schemas, responses, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const model = process.env.ATOM_MODEL;
const client = new OpenAI({ baseURL: `${process.env.ATOM_URL}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const settings = { model, messages, max_tokens: 12, temperature: 0 };
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, unit: { enum: ["C", "F"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

test("the model is listed", async () => {
  const ids = (await all(client.models.list())).map((entry) => entry.id);
  assert.ok(ids.includes(model));
});

test("a stream says what the whole answer says, and usage comes last", async () => {
  const whole = await client.chat.completions.create(settings);
  const stream = await client.chat.completions.create({ ...settings, stream: true, stream_options: { include_usage: true } });
  const chunks = await all(stream);
  const text = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? "")).join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper builds the same answer", async () => {
  const whole = await client.chat.completions.create(settings);
  const built = await client.chat.completions.stream(settings).finalChatCompletion();
  assert.equal(built.choices[0].message.content, whole.choices[0].message.content);
  assert.equal(built.choices[0].finish_reason, whole.choices[0].finish_reason);
});

test("text completions stream", async () => {
  const fields = { model, prompt: "The capital of France is", max_tokens: 6, temperature: 0 };
  const whole = await client.completions.create(fields);
  const chunks = await all(await client.completions.create({ ...fields, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? "").join(""), whole.choices[0].text);
});

test("a required tool is called, whole and in a stream", async () => {
  const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
  const fields = { ...settings, max_tokens: 120, tools, tool_choice: "required", parallel_tool_calls: false };
  const whole = (await client.chat.completions.create(fields)).choices[0].message.tool_calls[0].function;
  const built = await client.chat.completions.stream(fields).finalChatCompletion();
  assert.deepEqual(Object.keys(JSON.parse(whole.arguments)).sort(), ["city", "unit"]);
  assert.equal(built.choices[0].message.tool_calls[0].function.arguments, whole.arguments);
});

test("an answer follows a JSON schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  const answer = await client.chat.completions.parse({ ...settings, max_tokens: 120, response_format });
  assert.deepEqual(Object.keys(answer.choices[0].message.parsed).sort(), ["city", "unit"]);
});

test("a response is created and streamed", async () => {
  const fields = { model, input: "What is the capital of France?", max_output_tokens: 12, temperature: 0 };
  const whole = await client.responses.create(fields);
  const streamed = await client.responses.stream(fields).finalResponse();
  assert.equal(streamed.output_text, whole.output_text);
});

test("embeddings are numbers", async () => {
  const answer = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
  assert.equal(answer.data.length, 2);
  assert.ok(answer.data.every((entry) => entry.embedding.every(Number.isFinite)));
});

test("errors are the client's classes, with code and param", async () => {
  await assert.rejects(client.chat.completions.create({ ...settings, model: "no-such-model" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...settings, temperature: -1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
});
