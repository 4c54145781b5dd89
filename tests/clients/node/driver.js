// Drives kafkajs through the client tests: one JSON object a line on standard input, one answer a line on standard
// output.  tests/integration/clients/drivers/program.py is the other side.
'use strict'

const fs = require('fs')
const readline = require('readline')
const { CompressionCodecs, CompressionTypes, Kafka, PartitionAssigners, logLevel } = require('kafkajs')
const lz4 = require('lz4-napi')
const snappy = require('snappyjs')
const { ZstdCodec } = require('zstd-codec')

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const ASSIGNERS = { roundrobin: PartitionAssigners.roundRobin }
const MAX_WAIT_MS = 100
const POLL_MS = 10
const STREAM_PAUSE_MS = 50
const REAUTHENTICATION_MS = 500 // before a session ends; the default of 10 s is more than sessions of tests have
// Java's snappy stream: a magic of 8 bytes, two version numbers, then blocks, each after its length.
const XERIAL_MAGIC = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00])
const XERIAL_HEADER_BYTES = 16

const settings = JSON.parse(process.argv[2])
const kafka = new Kafka({
  clientId: 'bmq-test',
  brokers: [settings.bootstrap],
  logLevel: logLevel.ERROR,
  ...secure(settings.login || {}),
})
const admin = kafka.admin()

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const encode = data => (data == null ? null : data.toString('base64'))
const decode = text => (text == null ? null : Buffer.from(text, 'base64'))

async function waitFor(condition, describe) {
  const deadline = Date.now() + settings.timeout_ms
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`not in time: ${describe()}`)
    await sleep(POLL_MS)
  }
}

// --- who the client is; fields that its mechanism does not use are empty ---

function secure(login) {
  const read = path => (path ? fs.readFileSync(path, 'utf8') : undefined)
  const made = { reauthenticationThreshold: REAUTHENTICATION_MS }
  if ((login.protocol || '').endsWith('SSL')) {
    const pair = read(login.certificate)
    made.ssl = { ca: [read(login.authority)], cert: pair, key: pair }
  }
  if (login.mechanism === 'OAUTHBEARER') {
    made.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: read(login.access_token).trim() }) }
  } else if (login.mechanism) {
    made.sasl = { mechanism: login.mechanism.toLowerCase(), username: login.user, password: login.password }
  }
  return made
}

// --- codecs: kafkajs brings gzip only and asks for the others ---

function unsnappy(data) {
  if (!data.subarray(0, XERIAL_MAGIC.length).equals(XERIAL_MAGIC)) return snappy.uncompress(data)
  const parts = []
  for (let at = XERIAL_HEADER_BYTES; at < data.length; ) {
    const length = data.readInt32BE(at)
    parts.push(snappy.uncompress(data.subarray(at + 4, at + 4 + length)))
    at += 4 + length
  }
  return Buffer.concat(parts)
}

// Streaming, since the simple call needs the content's size in the frame, which librdkafka and Java leave out.
function installCodecs(zstd) {
  CompressionCodecs[CompressionTypes.Snappy] = () => ({
    compress: async encoder => snappy.compress(encoder.buffer),
    decompress: async data => unsnappy(data),
  })
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async encoder => lz4.compressFrame(encoder.buffer),
    decompress: async data => lz4.decompressFrame(data),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async data => Buffer.from(zstd.decompress(data)),
  })
}

// --- headers: an object by name, with an array where a name comes more than once in a row ---

function toHeaders(list) {
  const headers = {}
  for (const { name, value } of list) {
    if (name in headers) headers[name] = [].concat(headers[name], [decode(value)])
    else headers[name] = decode(value)
  }
  return headers
}

function fromHeaders(headers) {
  return Object.entries(headers || {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map(each => ({ name, value: encode(each) }))
  )
}

// --- groups ---

function member(group, partitionAssigner) {
  return kafka.consumer({
    groupId: group,
    sessionTimeout: settings.session_timeout_ms,
    rebalanceTimeout: settings.session_timeout_ms,
    heartbeatInterval: settings.heartbeat_ms,
    maxWaitTimeInMs: MAX_WAIT_MS,
    partitionAssigners: [partitionAssigner],
  })
}

async function consume({ topics, group, count }) {
  const consumer = member(group, PartitionAssigners.roundRobin)
  const records = []
  const next = new Map()
  let crash = null
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    crash = payload.error
  })
  await consumer.connect()
  try {
    await consumer.subscribe({ topics, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        if (records.length >= count) return
        records.push({
          topic,
          partition,
          offset: Number(message.offset),
          key: encode(message.key),
          value: encode(message.value),
          headers: fromHeaders(message.headers),
          timestamp: Number(message.timestamp),
        })
        next.set(`${topic} ${partition}`, { topic, partition, offset: String(Number(message.offset) + 1) })
      },
    })
    await waitFor(() => crash || records.length >= count, () => `${records.length} of ${count} records`)
    if (crash) throw crash
    await consumer.commitOffsets([...next.values()])
  } finally {
    await consumer.disconnect()
  }
  return records
}

async function watch(topic, group, assignor) {
  const consumer = member(group, ASSIGNERS[assignor])
  const watched = { held: [], leave: () => consumer.disconnect() }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    watched.held = [...(payload.memberAssignment[topic] || [])].sort()
  })
  consumer.on(consumer.events.REBALANCING, () => {
    watched.held = []
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ autoCommit: false, eachMessage: async () => {} })
  return watched
}

async function rebalance({ topic, group, assignor }) {
  const count = await partitions({ topic })
  const first = await watch(topic, group, assignor)
  await waitFor(() => first.held.length === count, () => first.held)
  const alone = first.held
  const second = await watch(topic, group, assignor)
  const isShared = () =>
    first.held.length > 0 &&
    second.held.length > 0 &&
    first.held.length + second.held.length === count &&
    new Set([...first.held, ...second.held]).size === count
  await waitFor(isShared, () => `${first.held} and ${second.held}`)
  const both = { first: first.held, second: second.held }
  await first.leave()
  await waitFor(() => second.held.length === count, () => second.held)
  await second.leave()
  return { alone, ...both, left: second.held }
}

// --- topics and offsets ---

async function partitions({ topic }) {
  if (!(await admin.listTopics()).includes(topic)) return 0
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
  return topics[0].partitions.length
}

async function produce({ topic, codec, idempotent, messages }) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1, retry: { retries: 5 } })
  await producer.connect()
  try {
    await producer.send({
      topic,
      acks: -1,
      compression: CODECS[codec],
      messages: messages.map(({ partition, key, value, headers, timestamp }) => ({
        partition,
        key: decode(key),
        value: decode(value),
        headers: toHeaders(headers),
        timestamp: String(timestamp),
      })),
    })
  } finally {
    await producer.disconnect()
  }
}

// One record after the other, "0", "1", …, by one producer that lives for this long.
async function stream({ topic, seconds }) {
  const producer = kafka.producer({ maxInFlightRequests: 1 })
  await producer.connect()
  let sent = 0
  try {
    for (const end = Date.now() + seconds * 1000; Date.now() < end; sent++) {
      await producer.send({ topic, acks: -1, messages: [{ partition: 0, value: String(sent) }] })
      await sleep(STREAM_PAUSE_MS)
    }
  } finally {
    await producer.disconnect()
  }
  return sent
}

async function offsetsForTime({ topic, timestamp }) {
  const found = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)
  const ends = new Map((await admin.fetchTopicOffsets(topic)).map(({ partition, high }) => [partition, high]))
  // Where Kafka found none, kafkajs puts the end of the partition.
  return Object.fromEntries(
    found.map(({ partition, offset }) => [partition, offset === ends.get(partition) ? -1 : Number(offset)])
  )
}

async function firstOffsets({ topic }) {
  const found = await admin.fetchTopicOffsets(topic)
  return Object.fromEntries(found.map(({ partition, low }) => [partition, Number(low)]))
}

const OPERATIONS = {
  create_topic: ({ topic, partitions }) =>
    admin.createTopics({ topics: [{ topic, numPartitions: partitions }], waitForLeaders: true }),
  delete_topic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  partitions,
  produce,
  stream,
  consume,
  rebalance,
  offsets_for_time: offsetsForTime,
  first_offsets: firstOffsets,
  delete_records: ({ topic, before }) =>
    admin.deleteTopicRecords({
      topic,
      partitions: Object.entries(before).map(([partition, offset]) => ({
        partition: Number(partition),
        offset: String(offset),
      })),
    }),
  groups: async () => (await admin.listGroups()).groups.map(({ groupId }) => groupId),
  describe_group: async ({ group }) => {
    const { groups } = await admin.describeGroups([group])
    return { state: groups[0].state, members: groups[0].members.length }
  },
  delete_group: ({ group }) => admin.deleteGroups([group]),
}

async function main() {
  await new Promise(resolve => ZstdCodec.run(zstd => resolve(installCodecs(new zstd.Streaming()))))
  await admin.connect()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer
    try {
      const result = await OPERATIONS[request.op](request)
      answer = { ok: result === undefined ? null : result }
    } catch (error) {
      answer = { error: String(error.stack || error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  await admin.disconnect()
}

main().catch(error => {
  console.error(error)
  process.exitCode = 1
})
