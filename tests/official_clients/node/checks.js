// What applications do with the official Node client, against the broker at PUBSUB_EMULATOR_HOST. One line of JSON per
// check on standard output: {"check": NAME, "outcome": "passed" | "failed", "reason": TEXT}. Arguments: names of checks.

import assert from 'node:assert/strict';
import {PubSub, v1} from '@google-cloud/pubsub';
import grpc from '@grpc/grpc-js';

const projectId = 'official-node';
const pubsub = new PubSub({projectId});
const WAIT_MS = 30_000;
const CODES = {INVALID_ARGUMENT: 3, NOT_FOUND: 5, ALREADY_EXISTS: 6, FAILED_PRECONDITION: 9};

// ── what the checks share ───────────────────────────────────────────────────────────────────────────────────────────

let numbers = 0;
const name = kind => `${kind}-${process.pid}-${++numbers}`;

async function topicAndSubscription(options = {}) {
  const [topic] = await pubsub.createTopic(name('topic'));
  const [subscription] = await topic.createSubscription(name('subscription'), options);
  return {topic, subscription};
}

const publish = (topic, count, message = {}) =>
  Promise.all(
    Array.from({length: count}, (_, number) =>
      topic.publishMessage({data: Buffer.from(String(number)), attributes: {number: String(number)}, ...message}),
    ),
  );

// The first `count` messages; each is given to `settle`, which acknowledges it unless told otherwise. The subscription
// is closed afterwards.
function receive(subscription, count, settle = message => message.ack()) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const timer = setTimeout(() => end(new Error(`${messages.length} of ${count} messages came`)), WAIT_MS);
    function end(error) {
      clearTimeout(timer);
      subscription.removeAllListeners();
      subscription.close().then(() => (error ? reject(error) : resolve(messages)), reject);
    }
    subscription.on('error', end);
    subscription.on('message', async message => {
      messages.push(message);
      try {
        await settle(message, messages.length);
      } catch (error) {
        end(error);
        return;
      }
      if (messages.length === count) end();
    });
  });
}

// Whatever comes within `ms`.
async function receiveFor(subscription, ms) {
  const messages = [];
  subscription.on('error', () => {});
  subscription.on('message', message => {
    messages.push(message);
    message.ack();
  });
  await pause(ms);
  subscription.removeAllListeners('message');
  await subscription.close();
  return messages;
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const numbersOf = messages => messages.map(message => Number(message.attributes.number)).sort((a, b) => a - b);
const upTo = count => Array.from({length: count}, (_, number) => number);
const base64 = text => Buffer.from(text).toString('base64'); // how the client takes bytes
const fails = (promise, code) => assert.rejects(promise, error => error.code === CODES[code]);

// How the generated clients, which do not know the variable, are told of the broker.
function generated() {
  const [servicePath, port] = process.env.PUBSUB_EMULATOR_HOST.split(':');
  return {projectId, servicePath, port, sslCreds: grpc.credentials.createInsecure()};
}

// ── the checks ──────────────────────────────────────────────────────────────────────────────────────────────────────

const checks = {
  async 'publish and subscribe'() {
    const {topic, subscription} = await topicAndSubscription();
    const published = await publish(topic, 500);
    const received = await receive(subscription, 500);
    assert.deepEqual(new Set(received.map(message => message.id)), new Set(published));
    assert.deepEqual(numbersOf(received), upTo(500));
    assert.ok(Math.abs(received[0].publishTime.getTime() - Date.now()) < 60_000);
  },

  async 'unary pull'() {
    const {topic, subscription} = await topicAndSubscription();
    await publish(topic, 3);
    const subscriber = new v1.SubscriberClient(generated());
    const [response] = await subscriber.pull({subscription: subscription.name, maxMessages: 10});
    assert.equal(response.receivedMessages.length, 3);
    const ackIds = response.receivedMessages.map(received => received.ackId);
    await subscriber.modifyAckDeadline({subscription: subscription.name, ackIds, ackDeadlineSeconds: 30});
    await subscriber.acknowledge({subscription: subscription.name, ackIds});
    await subscriber.close();
  },

  async 'ordering'() {
    const {topic, subscription} = await topicAndSubscription({enableMessageOrdering: true});
    const ordered = pubsub.topic(topic.name, {messageOrdering: true});
    const expected = {};
    for (let number = 0; number < 200; number++) {
      const orderingKey = `key-${number % 5}`;
      (expected[orderingKey] ??= []).push(number);
      ordered.publishMessage({data: Buffer.from(String(number)), attributes: {number: String(number)}, orderingKey});
    }
    await ordered.flush();
    const actual = {};
    for (const message of await receive(subscription, 200)) {
      (actual[message.orderingKey] ??= []).push(Number(message.attributes.number));
    }
    assert.deepEqual(actual, expected);
  },

  async 'flow control'() {
    const {topic, subscription} = await topicAndSubscription();
    await publish(topic, 50);
    const limited = pubsub.subscription(subscription.name, {
      flowControl: {maxMessages: 5, allowExcessMessages: false},
      streamingOptions: {maxStreams: 1},
    });
    let now = 0;
    let most = 0;
    const received = await receive(limited, 50, async message => {
      most = Math.max(most, ++now);
      await pause(10);
      now--;
      message.ack();
    });
    assert.deepEqual(numbersOf(received), upTo(50));
    assert.ok(most <= 5, `${most} at once`);
  },

  async 'exactly once'() {
    const {topic, subscription} = await topicAndSubscription({enableExactlyOnceDelivery: true});
    await publish(topic, 20);
    const received = await receive(subscription, 20, async message => {
      assert.equal(await message.ackWithResponse(), 'SUCCESS');
    });
    assert.deepEqual(numbersOf(received), upTo(20));
    assert.deepEqual(await receiveFor(pubsub.subscription(subscription.name), 1_000), []);
  },

  async 'nack and redelivery'() {
    const {topic, subscription} = await topicAndSubscription();
    await publish(topic, 10);
    const received = await receive(subscription, 20, (message, count) =>
      count <= 10 ? message.nack() : message.ack(),
    );
    assert.deepEqual(numbersOf(received), [...upTo(10), ...upTo(10)].sort((a, b) => a - b));
  },

  async 'a lease is extended while a message is worked on'() {
    const {topic, subscription} = await topicAndSubscription({ackDeadlineSeconds: 10});
    await publish(topic, 1);
    let deliveries = 0;
    subscription.on('error', () => {});
    subscription.on('message', async message => {
      deliveries++;
      await pause(14_000);
      message.ack();
    });
    await pause(16_000);
    subscription.removeAllListeners('message');
    await subscription.close();
    assert.equal(deliveries, 1);
  },

  async 'dead letter'() {
    const [dead] = await pubsub.createTopic(name('dead'));
    const [deadSubscription] = await dead.createSubscription(name('dead-subscription'));
    const {topic, subscription} = await topicAndSubscription({
      deadLetterPolicy: {deadLetterTopic: dead.name, maxDeliveryAttempts: 5},
    });
    await topic.publishMessage({data: Buffer.from('poison'), attributes: {colour: 'red'}});
    const attempts = (await receive(subscription, 5, message => message.nack())).map(one => one.deliveryAttempt);
    assert.deepEqual(attempts, [1, 2, 3, 4, 5]);
    const [message] = await receive(deadSubscription, 1);
    assert.equal(message.data.toString(), 'poison');
    assert.equal(message.attributes.colour, 'red');
    assert.equal(message.attributes.CloudPubSubDeadLetterSourceDeliveryCount, '5');
    assert.equal(message.attributes.CloudPubSubDeadLetterSourceSubscription, subscription.name.split('/').pop());
    assert.equal(message.attributes.CloudPubSubDeadLetterSourceSubscriptionProject, projectId);
  },

  async 'filter'() {
    const {topic, subscription} = await topicAndSubscription({
      filter: 'attributes.colour = "red" AND NOT attributes:old',
    });
    await publish(topic, 1, {attributes: {number: '0', colour: 'red'}});
    await publish(topic, 1, {attributes: {number: '1', colour: 'blue'}});
    await publish(topic, 1, {attributes: {number: '2', colour: 'red', old: 'yes'}});
    await publish(topic, 1, {attributes: {number: '3', colour: 'red'}});
    assert.deepEqual(numbersOf(await receive(subscription, 2)), [0, 3]);
    await fails(topic.createSubscription(name('bad'), {filter: 'colour red'}), 'INVALID_ARGUMENT');
  },

  async 'seek to a time'() {
    const {topic, subscription} = await topicAndSubscription({retainAckedMessages: true});
    await publish(topic, 5);
    await receive(pubsub.subscription(subscription.name), 5);
    await subscription.seek(new Date(Date.now() - 3_600_000));
    assert.deepEqual(numbersOf(await receive(pubsub.subscription(subscription.name), 5)), upTo(5));
    await publish(topic, 5);
    await subscription.seek(new Date('3000-01-01T00:00:00Z'));
    assert.deepEqual(await receiveFor(pubsub.subscription(subscription.name), 500), []);
  },

  async 'snapshots'() {
    const {topic, subscription} = await topicAndSubscription();
    await publish(topic, 3);
    const [snapshot] = await subscription.createSnapshot(name('snapshot'));
    assert.deepEqual(numbersOf(await receive(pubsub.subscription(subscription.name), 3)), upTo(3));
    await subscription.seek(snapshot.name);
    assert.deepEqual(numbersOf(await receive(pubsub.subscription(subscription.name), 3)), upTo(3));
    const [snapshots] = await pubsub.getSnapshots();
    assert.ok(snapshots.some(one => one.name === snapshot.name));
    await snapshot.delete();
    await fails(subscription.seek(snapshot.name), 'NOT_FOUND');
  },

  async 'schemas'() {
    const definition = JSON.stringify({
      type: 'record', name: 'State', fields: [{name: 'name', type: 'string'}, {name: 'order', type: 'int'}],
    });
    const id = name('schema');
    const schema = await pubsub.createSchema(id, 'AVRO', definition);
    const valid = JSON.stringify({name: 'Alaska', order: 49});
    assert.equal((await schema.get('FULL')).definition, definition);
    const listed = [];
    for await (const one of pubsub.listSchemas()) listed.push(one);
    const own = listed.find(one => one.name.endsWith(`/${id}`));
    assert.equal(own.definition, '');
    await pubsub.validateSchema({type: 'AVRO', definition});
    await fails(pubsub.validateSchema({type: 'AVRO', definition: '{"type": "nothing"}'}), 'INVALID_ARGUMENT');
    await schema.validateMessage(base64(valid), 'JSON');
    await fails(schema.validateMessage(base64('{"name": 7}'), 'JSON'), 'INVALID_ARGUMENT');

    const [topic] = await pubsub.createTopic({
      name: name('topic'), schemaSettings: {schema: await schema.getName(), encoding: 'JSON'},
    });
    const [subscription] = await topic.createSubscription(name('subscription'));
    await topic.publishMessage({data: Buffer.from(valid)});
    await fails(topic.publishMessage({data: Buffer.from('{"name": 7}')}), 'INVALID_ARGUMENT');
    const [message] = await receive(subscription, 1);
    assert.equal(message.data.toString(), valid);
    assert.equal(message.attributes.googclient_schemaencoding, 'JSON');

    const client = new v1.SchemaServiceClient(generated());
    const [first] = await client.getSchema({name: own.name, view: 'FULL'});
    const wider = definition.replace(']}', ',{"name":"capital","type":["null","string"],"default":null}]}');
    const [second] = await client.commitSchema({
      name: own.name, schema: {name: own.name, type: 'AVRO', definition: wider},
    });
    assert.notEqual(second.revisionId, first.revisionId);
    const [revisions] = await client.listSchemaRevisions({name: own.name});
    assert.deepEqual(revisions.map(one => one.revisionId), [second.revisionId, first.revisionId]);
    const [back] = await client.rollbackSchema({name: own.name, revisionId: first.revisionId});
    assert.equal(back.definition, definition);
    await client.deleteSchemaRevision({name: `${own.name}@${second.revisionId}`});
    await client.close();
    await schema.delete();
    await fails(schema.get('FULL'), 'NOT_FOUND');
  },

  async 'access policies'() {
    const {topic, subscription} = await topicAndSubscription();
    for (const resource of [topic, subscription]) {
      const [policy] = await resource.iam.getPolicy();
      assert.deepEqual(policy.bindings, []);
      const bindings = [{role: 'roles/pubsub.viewer', members: ['user:somebody@example.com'], condition: null}];
      await resource.iam.setPolicy({...policy, bindings});
      const [stored] = await resource.iam.getPolicy();
      assert.deepEqual(stored.bindings, bindings);
      const permission = `pubsub.${resource === topic ? 'topics' : 'subscriptions'}.get`;
      const [permissions] = await resource.iam.testPermissions([permission]);
      assert.deepEqual(permissions, {[permission]: true});
    }
  },

  async 'a message of 9 MB'() {
    const {topic, subscription} = await topicAndSubscription();
    const data = Buffer.alloc(9_000_000, 'x');
    await topic.publishMessage({data});
    const [message] = await receive(subscription, 1);
    assert.ok(message.data.equals(data));
  },

  async 'update of topics and subscriptions'() {
    const {topic, subscription} = await topicAndSubscription();
    await topic.setMetadata({labels: {team: 'billing'}, messageRetentionDuration: {seconds: 3600}});
    const [changed] = await topic.getMetadata();
    assert.deepEqual(changed.labels, {team: 'billing'});
    assert.equal(Number(changed.messageRetentionDuration.seconds), 3600);
    await subscription.setMetadata({
      ackDeadlineSeconds: 42,
      messageRetentionDuration: {seconds: 1200},
      labels: {team: 'billing'},
      retryPolicy: {minimumBackoff: {seconds: 1}, maximumBackoff: {seconds: 60}},
      expirationPolicy: {ttl: {seconds: 86_400 * 2}},
    });
    const [metadata] = await subscription.getMetadata();
    assert.equal(metadata.ackDeadlineSeconds, 42);
    assert.equal(Number(metadata.messageRetentionDuration.seconds), 1200);
    assert.equal(Number(metadata.retryPolicy.maximumBackoff.seconds), 60);
    assert.deepEqual(metadata.labels, {team: 'billing'});
    await subscription.setMetadata({retryPolicy: null});
    assert.equal((await subscription.getMetadata())[0].retryPolicy, null);
    await fails(subscription.setMetadata({filter: 'attributes:a'}), 'INVALID_ARGUMENT');
  },

  async 'push configuration'() {
    const {topic} = await topicAndSubscription();
    const pushEndpoint = 'https://example.com/push';
    const [subscription] = await topic.createSubscription(name('push'), {pushConfig: {pushEndpoint}});
    assert.equal((await subscription.getMetadata())[0].pushConfig.pushEndpoint, pushEndpoint);
    await subscription.modifyPushConfig({});
    assert.equal((await subscription.getMetadata())[0].pushConfig.pushEndpoint, '');
  },

  async 'detach'() {
    const {topic, subscription} = await topicAndSubscription();
    await pubsub.detachSubscription(subscription.name);
    assert.equal((await subscription.getMetadata())[0].detached, true);
    assert.deepEqual((await topic.getSubscriptions())[0], []);
  },

  async 'lists in pages'() {
    const own = new PubSub({projectId: name('project')});
    const ids = ['a-topic', 'b-topic', 'c-topic', 'd-topic', 'e-topic'];
    for (const id of ids) await own.createTopic(id);
    const listed = [];
    let query = {pageSize: 2, autoPaginate: false};
    let pages = 0;
    while (query) {
      const [topics, next] = await own.getTopics(query);
      pages++;
      listed.push(...topics.map(topic => topic.name.split('/').pop()));
      query = next;
    }
    assert.deepEqual(listed, ids);
    assert.equal(pages, 3);
    await own.close();
  },

  async 'errors'() {
    const {topic, subscription} = await topicAndSubscription();
    await fails(pubsub.createTopic(topic.name), 'ALREADY_EXISTS');
    await fails(pubsub.topic('missing').get(), 'NOT_FOUND');
    await fails(pubsub.topic('missing').publishMessage({data: Buffer.from('x')}), 'NOT_FOUND');
    await fails(pubsub.createTopic('x'), 'INVALID_ARGUMENT');
    await fails(receive(pubsub.subscription('missing'), 1), 'NOT_FOUND');
    await subscription.delete();
    await topic.delete();
    assert.deepEqual(await topic.exists(), [false]);
  },

  async 'a deleted topic'() {
    const {topic, subscription} = await topicAndSubscription();
    await publish(topic, 3);
    await topic.delete();
    assert.equal((await subscription.getMetadata())[0].topic, '_deleted-topic_');
    assert.deepEqual(numbersOf(await receive(subscription, 3)), upTo(3));
  },
};

// The error, and where in this file it came up.
function told(error) {
  const frames = String(error?.stack).split('\n').filter(line => line.includes('checks.js'));
  return [String(error), ...frames].join('\n');
}

const wanted = process.argv.slice(2);
await Promise.all(
  Object.entries(checks)
    .filter(([check]) => wanted.length === 0 || wanted.includes(check))
    .map(async ([check, run]) => {
      let result = {check, outcome: 'passed', reason: ''};
      try {
        await run();
      } catch (error) {
        result = {check, outcome: 'failed', reason: told(error)};
      }
      console.log(JSON.stringify(result));
    }),
);
process.exit(0); // whatever a failed check left open
