// /// script
// requires-node = ">=20"
// dependencies = ["ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"]
// ///
// Vercel's AI SDK: generated and streamed text, objects of a schema, tool calls; its strict parser takes every chunk.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "atom",
  baseURL: `${process.env.ATOM_URL}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(process.env.ATOM_MODEL);
const settings = { model, prompt: "What is the capital of France?", maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
const schema = z.object({ city: z.string().max(12), unit: z.enum(["C", "F"]) });
const tools = { weather: tool({ description: "The weather in a city.", inputSchema: schema }) };

test("streamed text is the generated text, with usage", async () => {
  const whole = await generateText(settings);
  const stream = streamText(settings);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.ok(text);
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
});

test("an object follows its schema", async () => {
  const { output } = await generateText({ ...settings, maxOutputTokens: 120, output: Output.object({ schema }) });
  assert.ok(schema.safeParse(output).success);
});

test("a required tool is called, whole and in a stream", async () => {
  const fields = { ...settings, maxOutputTokens: 120, tools, toolChoice: "required" };
  const [call] = (await generateText(fields)).toolCalls;
  assert.ok(schema.safeParse(call.input).success);
  const [streamed] = await streamText(fields).toolCalls;
  assert.deepEqual(streamed.input, call.input);
});
