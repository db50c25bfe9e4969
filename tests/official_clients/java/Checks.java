// What applications do with the official Java client, against the broker at PUBSUB_EMULATOR_HOST. One line of JSON per
// check on standard output: {"check": NAME, "outcome": "passed" | "failed", "reason": TEXT}. Arguments: names of checks.

import com.google.api.gax.core.CredentialsProvider;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.ApiException;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.api.gax.rpc.StatusCode;
import com.google.api.gax.rpc.TransportChannelProvider;
import com.google.api.core.ApiFuture;
import com.google.api.gax.batching.FlowControlSettings;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.cloud.pubsub.v1.AckReplyConsumerWithResponse;
import com.google.cloud.pubsub.v1.AckResponse;
import com.google.cloud.pubsub.v1.MessageReceiver;
import com.google.cloud.pubsub.v1.MessageReceiverWithAckResponse;
import com.google.cloud.pubsub.v1.Publisher;
import com.google.cloud.pubsub.v1.SchemaServiceClient;
import com.google.cloud.pubsub.v1.SchemaServiceSettings;
import com.google.cloud.pubsub.v1.Subscriber;
import com.google.cloud.pubsub.v1.SubscriptionAdminClient;
import com.google.cloud.pubsub.v1.SubscriptionAdminSettings;
import com.google.cloud.pubsub.v1.TopicAdminClient;
import com.google.cloud.pubsub.v1.TopicAdminSettings;
import com.google.iam.v1.Binding;
import com.google.iam.v1.GetIamPolicyRequest;
import com.google.iam.v1.Policy;
import com.google.iam.v1.SetIamPolicyRequest;
import com.google.iam.v1.TestIamPermissionsRequest;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import com.google.protobuf.FieldMask;
import com.google.protobuf.util.Timestamps;
import com.google.pubsub.v1.*;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.LogManager;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

public class Checks {
  static final String PROJECT_ID = "official-java";
  static final String PROJECT = "projects/" + PROJECT_ID;
  static final int WAIT_SECONDS = 30;
  static final CredentialsProvider NOBODY = NoCredentialsProvider.create();
  static final AtomicInteger numbers = new AtomicInteger();
  static TransportChannelProvider channels;
  static TopicAdminClient topics;
  static SubscriptionAdminClient subscriptions;
  static SchemaServiceClient schemas;

  // ── what the checks share ─────────────────────────────────────────────────────────────────────────────────────────

  interface Body {
    void run() throws Exception;
  }

  static String name(String kind) {
    return PROJECT + "/" + kind + "s/" + kind + "-" + ProcessHandle.current().pid() + "-" + numbers.incrementAndGet();
  }

  static String leaf(String name) {
    return name.substring(name.lastIndexOf('/') + 1);
  }

  static void equal(Object actual, Object expected) {
    if (!Objects.equals(actual, expected)) {
      throw new AssertionError(actual + " instead of " + expected);
    }
  }

  static void fails(StatusCode.Code code, Body body) throws Exception {
    Throwable failure = null;
    try {
      body.run();
    } catch (Exception caught) {
      failure = caught instanceof ApiException ? caught : caught.getCause();
    }
    if (!(failure instanceof ApiException) || ((ApiException) failure).getStatusCode().getCode() != code) {
      throw new AssertionError(failure + " instead of " + code, failure);
    }
  }

  static String createTopic() {
    return topics.createTopic(name("topic")).getName();
  }

  static String createSubscription(String topic, Subscription.Builder settings) {
    String name = name("subscription");
    return subscriptions.createSubscription(settings.setName(name).setTopic(topic).build()).getName();
  }

  static Publisher.Builder publisher(String topic) {
    return Publisher.newBuilder(topic).setChannelProvider(channels).setCredentialsProvider(NOBODY);
  }

  static Set<String> publish(Publisher publisher, List<PubsubMessage> messages) throws Exception {
    List<ApiFuture<String>> ids = messages.stream().map(publisher::publish).collect(Collectors.toList());
    publisher.publishAllOutstanding();
    Set<String> published = new HashSet<>();
    for (ApiFuture<String> id : ids) {
      published.add(id.get(WAIT_SECONDS, TimeUnit.SECONDS));
    }
    publisher.shutdown();
    publisher.awaitTermination(WAIT_SECONDS, TimeUnit.SECONDS);
    return published;
  }

  static Set<String> publish(String topic, int count) throws Exception {
    return publish(publisher(topic).build(), IntStream.range(0, count).mapToObj(Checks::numbered).toList());
  }

  static PubsubMessage numbered(int number) {
    return message("x", "number", Integer.toString(number));
  }

  static PubsubMessage message(String data, String... attributes) {
    PubsubMessage.Builder message = PubsubMessage.newBuilder().setData(ByteString.copyFromUtf8(data));
    for (int at = 0; at < attributes.length; at += 2) {
      message.putAttributes(attributes[at], attributes[at + 1]);
    }
    return message.build();
  }

  /** The first `count` messages; each is settled by `receiver`. */
  static List<PubsubMessage> receive(String subscription, int count, MessageReceiver receiver) throws Exception {
    List<PubsubMessage> messages = receiveWithin(subscription, count, WAIT_SECONDS * 1000, receiver, null);
    if (messages.size() < count) {
      throw new AssertionError(messages.size() + " of " + count + " messages came");
    }
    return messages;
  }

  static List<PubsubMessage> receive(String subscription, int count) throws Exception {
    return receive(subscription, count, (message, reply) -> reply.ack());
  }

  static List<PubsubMessage> receiveWithin(
      String subscription, int count, long millis, MessageReceiver receiver, FlowControlSettings flow)
      throws Exception {
    ConcurrentLinkedQueue<PubsubMessage> messages = new ConcurrentLinkedQueue<>();
    CountDownLatch left = new CountDownLatch(count);
    MessageReceiver counting = (message, reply) -> {
      receiver.receiveMessage(message, reply);
      messages.add(message);
      left.countDown();
    };
    Subscriber.Builder builder = Subscriber.newBuilder(subscription, counting);
    if (flow != null) {
      builder.setFlowControlSettings(flow);
    }
    run(builder.setChannelProvider(channels).setCredentialsProvider(NOBODY).build(), left, millis);
    return new ArrayList<>(messages);
  }

  static void run(Subscriber subscriber, CountDownLatch left, long millis) throws Exception {
    subscriber.startAsync().awaitRunning();
    left.await(millis, TimeUnit.MILLISECONDS);
    subscriber.stopAsync().awaitTerminated(WAIT_SECONDS, TimeUnit.SECONDS);
  }

  static List<Integer> numbersOf(List<PubsubMessage> messages) {
    return messages.stream().map(message -> Integer.valueOf(message.getAttributesOrThrow("number"))).sorted().toList();
  }

  static List<Integer> upTo(int count) {
    return IntStream.range(0, count).boxed().toList();
  }

  static FieldMask mask(String... paths) {
    return FieldMask.newBuilder().addAllPaths(Arrays.asList(paths)).build();
  }

  static Duration seconds(long seconds) {
    return Duration.newBuilder().setSeconds(seconds).build();
  }

  // ── the checks ────────────────────────────────────────────────────────────────────────────────────────────────────

  static void publishAndSubscribe() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    Set<String> published = publish(topic, 500);
    List<PubsubMessage> received = receive(subscription, 500);
    equal(received.stream().map(PubsubMessage::getMessageId).collect(Collectors.toSet()), published);
    equal(numbersOf(received), upTo(500));
  }

  static void unaryPull() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    publish(topic, 3);
    List<String> ackIds =
        subscriptions.pull(subscription, 10).getReceivedMessagesList().stream()
            .map(ReceivedMessage::getAckId)
            .collect(Collectors.toList());
    equal(ackIds.size(), 3);
    subscriptions.modifyAckDeadline(subscription, ackIds, 30);
    subscriptions.acknowledge(subscription, ackIds);
  }

  static void ordering() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder().setEnableMessageOrdering(true));
    Map<String, List<Integer>> expected = new HashMap<>();
    List<PubsubMessage> messages = new ArrayList<>();
    for (int number = 0; number < 200; number++) {
      String key = "key-" + number % 5;
      expected.computeIfAbsent(key, unused -> new ArrayList<>()).add(number);
      messages.add(numbered(number).toBuilder().setOrderingKey(key).build());
    }
    publish(publisher(topic).setEnableMessageOrdering(true).build(), messages);
    Map<String, List<Integer>> actual = new ConcurrentHashMap<>();
    receive(subscription, 200, (message, reply) -> {
      int number = Integer.parseInt(message.getAttributesOrThrow("number"));
      actual.computeIfAbsent(message.getOrderingKey(), unused -> new ArrayList<>()).add(number);
      reply.ack();
    });
    equal(actual, expected);
  }

  static void flowControl() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    publish(topic, 50);
    AtomicInteger now = new AtomicInteger();
    AtomicInteger most = new AtomicInteger();
    MessageReceiver receiver = (message, reply) -> {
      most.accumulateAndGet(now.incrementAndGet(), Math::max);
      pause(10);
      now.decrementAndGet();
      reply.ack();
    };
    FlowControlSettings flow = FlowControlSettings.newBuilder().setMaxOutstandingElementCount(5L).build();
    equal(numbersOf(receiveWithin(subscription, 50, WAIT_SECONDS * 1000, receiver, flow)), upTo(50));
    equal(most.get() <= 5, true);
  }

  static void exactlyOnce() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder().setEnableExactlyOnceDelivery(true));
    publish(topic, 20);
    ConcurrentLinkedQueue<AckResponse> responses = new ConcurrentLinkedQueue<>();
    CountDownLatch left = new CountDownLatch(20);
    ExecutorService waiting = Executors.newCachedThreadPool();
    MessageReceiverWithAckResponse receiver = (message, reply) -> {
      var future = reply.ack();
      waiting.submit(() -> {
        responses.add(future.get());
        left.countDown();
        return null;
      });
    };
    run(
        Subscriber.newBuilder(subscription, receiver)
            .setChannelProvider(channels)
            .setCredentialsProvider(NOBODY)
            .build(),
        left,
        WAIT_SECONDS * 1000);
    waiting.shutdown();
    equal(responses.size(), 20);
    equal(new HashSet<>(responses), Set.of(AckResponse.SUCCESSFUL));
    equal(receiveWithin(subscription, 1, 1000, (message, reply) -> reply.ack(), null), List.of());
  }

  static void nackAndRedelivery() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    publish(topic, 10);
    Set<String> seen = ConcurrentHashMap.newKeySet();
    receive(subscription, 20, (message, reply) -> {
      if (seen.add(message.getMessageId())) {
        reply.nack();
      } else {
        reply.ack();
      }
    });
    equal(seen.size(), 10);
  }

  static void leaseExtension() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder().setAckDeadlineSeconds(10));
    publish(topic, 1);
    MessageReceiver slow = (message, reply) -> {
      pause(14_000);
      reply.ack();
    };
    equal(receiveWithin(subscription, 2, 16_000, slow, null).size(), 1);
  }

  static void deadLetter() throws Exception {
    String dead = createTopic();
    String topic = createTopic();
    String deadSubscription = createSubscription(dead, Subscription.newBuilder());
    DeadLetterPolicy policy =
        DeadLetterPolicy.newBuilder().setDeadLetterTopic(dead).setMaxDeliveryAttempts(5).build();
    String subscription = createSubscription(topic, Subscription.newBuilder().setDeadLetterPolicy(policy));
    publish(publisher(topic).build(), List.of(message("poison", "colour", "red")));
    List<Integer> attempts =
        receive(subscription, 5, (message, reply) -> reply.nack()).stream()
            .map(Subscriber::getDeliveryAttempt)
            .toList();
    equal(attempts, List.of(1, 2, 3, 4, 5));
    Map<String, String> attributes = receive(deadSubscription, 1).get(0).getAttributesMap();
    equal(attributes.get("colour"), "red");
    equal(attributes.get("CloudPubSubDeadLetterSourceDeliveryCount"), "5");
    equal(attributes.get("CloudPubSubDeadLetterSourceSubscription"), leaf(subscription));
    equal(attributes.get("CloudPubSubDeadLetterSourceSubscriptionProject"), PROJECT_ID);
  }

  static void filter() throws Exception {
    String topic = createTopic();
    String wanted = "attributes.colour = \"red\" AND NOT attributes:old";
    String subscription = createSubscription(topic, Subscription.newBuilder().setFilter(wanted));
    publish(
        publisher(topic).build(),
        List.of(
            message("x", "number", "0", "colour", "red"),
            message("x", "number", "1", "colour", "blue"),
            message("x", "number", "2", "colour", "red", "old", "yes"),
            message("x", "number", "3", "colour", "red")));
    equal(numbersOf(receive(subscription, 2)), List.of(0, 3));
    fails(
        StatusCode.Code.INVALID_ARGUMENT,
        () -> createSubscription(topic, Subscription.newBuilder().setFilter("colour red")));
  }

  static void seekToATime() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder().setRetainAckedMessages(true));
    publish(topic, 5);
    receive(subscription, 5);
    SeekRequest.Builder seek = SeekRequest.newBuilder().setSubscription(subscription);
    subscriptions.seek(seek.setTime(Timestamps.fromMillis(System.currentTimeMillis() - 3_600_000)).build());
    equal(numbersOf(receive(subscription, 5)), upTo(5));
    publish(topic, 5);
    subscriptions.seek(seek.setTime(Timestamps.parse("3000-01-01T00:00:00Z")).build());
    equal(receiveWithin(subscription, 1, 500, (message, reply) -> reply.ack(), null), List.of());
  }

  static void snapshots() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    publish(topic, 3);
    String snapshot = subscriptions.createSnapshot(name("snapshot"), subscription).getName();
    equal(numbersOf(receive(subscription, 3)), upTo(3));
    SeekRequest seek = SeekRequest.newBuilder().setSubscription(subscription).setSnapshot(snapshot).build();
    subscriptions.seek(seek);
    equal(numbersOf(receive(subscription, 3)), upTo(3));
    Snapshot labelled = Snapshot.newBuilder().setName(snapshot).putLabels("team", "billing").build();
    UpdateSnapshotRequest update =
        UpdateSnapshotRequest.newBuilder().setSnapshot(labelled).setUpdateMask(mask("labels")).build();
    equal(subscriptions.updateSnapshot(update).getLabelsMap(), Map.of("team", "billing"));
    boolean listed = false;
    for (Snapshot one : subscriptions.listSnapshots(PROJECT).iterateAll()) {
      listed |= one.getName().equals(snapshot);
    }
    equal(listed, true);
    subscriptions.deleteSnapshot(snapshot);
    fails(StatusCode.Code.NOT_FOUND, () -> subscriptions.seek(seek));
  }

  static void schemas() throws Exception {
    String definition =
        "{\"type\":\"record\",\"name\":\"State\",\"fields\":[{\"name\":\"name\",\"type\":\"string\"},"
            + "{\"name\":\"order\",\"type\":\"int\"}]}";
    String valid = "{\"name\":\"Alaska\",\"order\":49}";
    Schema avro = Schema.newBuilder().setType(Schema.Type.AVRO).setDefinition(definition).build();
    Schema first = schemas.createSchema(PROJECT, avro, leaf(name("schema")));
    ValidateMessageRequest.Builder validate =
        ValidateMessageRequest.newBuilder().setParent(PROJECT).setName(first.getName()).setEncoding(Encoding.JSON);
    schemas.validateMessage(validate.setMessage(ByteString.copyFromUtf8(valid)).build());
    ByteString invalid = ByteString.copyFromUtf8("{\"name\":7}");
    fails(
        StatusCode.Code.INVALID_ARGUMENT, () -> schemas.validateMessage(validate.setMessage(invalid).build()));
    Schema nothing = avro.toBuilder().setDefinition("{\"type\":\"nothing\"}").build();
    fails(StatusCode.Code.INVALID_ARGUMENT, () -> schemas.validateSchema(PROJECT, nothing));

    SchemaSettings settings =
        SchemaSettings.newBuilder().setSchema(first.getName()).setEncoding(Encoding.JSON).build();
    Topic wanted = Topic.newBuilder().setName(name("topic")).setSchemaSettings(settings).build();
    String topic = topics.createTopic(wanted).getName();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    publish(publisher(topic).build(), List.of(message(valid)));
    fails(
        StatusCode.Code.INVALID_ARGUMENT,
        () -> publish(publisher(topic).build(), List.of(message(invalid.toStringUtf8()))));
    PubsubMessage message = receive(subscription, 1).get(0);
    equal(message.getData().toStringUtf8(), valid);
    equal(message.getAttributesOrThrow("googclient_schemaencoding"), "JSON");
    equal(message.getAttributesOrThrow("googclient_schemarevisionid"), first.getRevisionId());

    String wider =
        definition.replace("]}", ",{\"name\":\"capital\",\"type\":[\"null\",\"string\"],\"default\":null}]}");
    Schema second =
        schemas.commitSchema(first.getName(), avro.toBuilder().setName(first.getName()).setDefinition(wider).build());
    List<String> listed = new ArrayList<>();
    schemas.listSchemaRevisions(first.getName()).iterateAll().forEach(one -> listed.add(one.getRevisionId()));
    equal(listed, List.of(second.getRevisionId(), first.getRevisionId()));
    equal(schemas.rollbackSchema(first.getName(), first.getRevisionId()).getDefinition(), definition);
    schemas.deleteSchemaRevision(first.getName() + "@" + second.getRevisionId(), "");
    schemas.deleteSchema(first.getName());
    fails(StatusCode.Code.NOT_FOUND, () -> schemas.getSchema(first.getName()));
  }

  static void accessPolicies() throws Exception {
    String topic = createTopic();
    Policy policy = topics.getIamPolicy(GetIamPolicyRequest.newBuilder().setResource(topic).build());
    equal(policy.getBindingsList(), List.of());
    Binding binding =
        Binding.newBuilder().setRole("roles/pubsub.viewer").addMembers("user:somebody@example.com").build();
    topics.setIamPolicy(
        SetIamPolicyRequest.newBuilder()
            .setResource(topic)
            .setPolicy(policy.toBuilder().addBindings(binding))
            .build());
    equal(
        topics.getIamPolicy(GetIamPolicyRequest.newBuilder().setResource(topic).build()).getBindingsList(),
        List.of(binding));
    TestIamPermissionsRequest test =
        TestIamPermissionsRequest.newBuilder().setResource(topic).addPermissions("pubsub.topics.get").build();
    equal(new ArrayList<>(topics.testIamPermissions(test).getPermissionsList()), List.of("pubsub.topics.get"));
  }

  static void nineMegabytes() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    ByteString data = ByteString.copyFrom(new byte[9_000_000]);
    publish(publisher(topic).build(), List.of(PubsubMessage.newBuilder().setData(data).build()));
    equal(receive(subscription, 1).get(0).getData().equals(data), true);
  }

  static void updates() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    Topic changed =
        topics.updateTopic(
            Topic.newBuilder()
                .setName(topic)
                .putLabels("team", "billing")
                .setMessageRetentionDuration(seconds(3600))
                .build(),
            mask("labels", "message_retention_duration"));
    equal(changed.getLabelsMap(), Map.of("team", "billing"));
    equal(changed.getMessageRetentionDuration(), seconds(3600));
    RetryPolicy retry = RetryPolicy.newBuilder().setMinimumBackoff(seconds(1)).build();
    Subscription updated =
        subscriptions.updateSubscription(
            Subscription.newBuilder()
                .setName(subscription)
                .setAckDeadlineSeconds(42)
                .putLabels("team", "billing")
                .setRetryPolicy(retry)
                .build(),
            mask("ack_deadline_seconds", "labels", "retry_policy"));
    equal(updated.getAckDeadlineSeconds(), 42);
    equal(updated.getLabelsMap(), Map.of("team", "billing"));
    equal(updated.getRetryPolicy().getMinimumBackoff(), seconds(1));
    Subscription bare = Subscription.newBuilder().setName(subscription).build();
    equal(subscriptions.updateSubscription(bare, mask("retry_policy")).hasRetryPolicy(), false);
    fails(
        StatusCode.Code.INVALID_ARGUMENT,
        () ->
            subscriptions.updateSubscription(
                bare.toBuilder().setFilter("attributes:a").build(), mask("filter")));
  }

  static void pushConfiguration() throws Exception {
    PushConfig push = PushConfig.newBuilder().setPushEndpoint("https://example.com/push").build();
    String subscription = createSubscription(createTopic(), Subscription.newBuilder().setPushConfig(push));
    equal(subscriptions.getSubscription(subscription).getPushConfig().getPushEndpoint(), push.getPushEndpoint());
    subscriptions.modifyPushConfig(subscription, PushConfig.getDefaultInstance());
    equal(subscriptions.getSubscription(subscription).getPushConfig().getPushEndpoint(), "");
  }

  static void detach() throws Exception {
    String subscription = createSubscription(createTopic(), Subscription.newBuilder());
    topics.detachSubscription(DetachSubscriptionRequest.newBuilder().setSubscription(subscription).build());
    equal(subscriptions.getSubscription(subscription).getDetached(), true);
    fails(StatusCode.Code.FAILED_PRECONDITION, () -> subscriptions.pull(subscription, 1));
  }

  static void listsInPages() throws Exception {
    String own = "projects/pages-" + ProcessHandle.current().pid();
    List<String> expected = new ArrayList<>();
    for (String id : List.of("a-topic", "b-topic", "c-topic", "d-topic", "e-topic")) {
      expected.add(topics.createTopic(own + "/topics/" + id).getName());
    }
    List<String> listed = new ArrayList<>();
    ListTopicsRequest request = ListTopicsRequest.newBuilder().setProject(own).setPageSize(2).build();
    topics.listTopics(request).iterateAll().forEach(topic -> listed.add(topic.getName()));
    equal(listed, expected);
  }

  static void errors() throws Exception {
    String topic = createTopic();
    fails(StatusCode.Code.ALREADY_EXISTS, () -> topics.createTopic(topic));
    fails(StatusCode.Code.NOT_FOUND, () -> topics.getTopic(PROJECT + "/topics/missing"));
    fails(StatusCode.Code.NOT_FOUND, () -> publish(PROJECT + "/topics/missing", 1));
    fails(StatusCode.Code.INVALID_ARGUMENT, () -> topics.createTopic(PROJECT + "/topics/x"));
    Subscriber missing =
        Subscriber.newBuilder(PROJECT + "/subscriptions/missing", (MessageReceiver) (message, reply) -> {})
            .setChannelProvider(channels)
            .setCredentialsProvider(NOBODY)
            .build();
    missing.startAsync();
    fails(
        StatusCode.Code.NOT_FOUND,
        () -> {
          try {
            missing.awaitTerminated(WAIT_SECONDS, TimeUnit.SECONDS);
          } catch (IllegalStateException ended) {
            throw (Exception) missing.failureCause();
          }
        });
  }

  static void deletedTopic() throws Exception {
    String topic = createTopic();
    String subscription = createSubscription(topic, Subscription.newBuilder());
    publish(topic, 3);
    topics.deleteTopic(topic);
    equal(subscriptions.getSubscription(subscription).getTopic(), "_deleted-topic_");
    equal(numbersOf(receive(subscription, 3)), upTo(3));
  }

  // ── running them ──────────────────────────────────────────────────────────────────────────────────────────────────

  static Map<String, Body> checks() {
    Map<String, Body> checks = new LinkedHashMap<>();
    checks.put("publish and subscribe", Checks::publishAndSubscribe);
    checks.put("unary pull", Checks::unaryPull);
    checks.put("ordering", Checks::ordering);
    checks.put("flow control", Checks::flowControl);
    checks.put("exactly once", Checks::exactlyOnce);
    checks.put("nack and redelivery", Checks::nackAndRedelivery);
    checks.put("a lease is extended while a message is worked on", Checks::leaseExtension);
    checks.put("dead letter", Checks::deadLetter);
    checks.put("filter", Checks::filter);
    checks.put("seek to a time", Checks::seekToATime);
    checks.put("snapshots", Checks::snapshots);
    checks.put("schemas", Checks::schemas);
    checks.put("access policies", Checks::accessPolicies);
    checks.put("a message of 9 MB", Checks::nineMegabytes);
    checks.put("update of topics and subscriptions", Checks::updates);
    checks.put("push configuration", Checks::pushConfiguration);
    checks.put("detach", Checks::detach);
    checks.put("lists in pages", Checks::listsInPages);
    checks.put("errors", Checks::errors);
    checks.put("a deleted topic", Checks::deletedTopic);
    return checks;
  }

  static void pause(long millis) {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  static void report(String check, Throwable failure) {
    StringWriter reason = new StringWriter();
    if (failure != null) {
      failure.printStackTrace(new PrintWriter(reason));
    }
    String text = reason.toString().replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("[\\x00-\\x1f]+", " | ");
    String outcome = failure == null ? "passed" : "failed";
    System.out.printf("{\"check\": \"%s\", \"outcome\": \"%s\", \"reason\": \"%s\"}%n", check, outcome, text);
  }

  public static void main(String[] arguments) throws Exception {
    LogManager.getLogManager().reset(); // what is expected to fail is logged with stack traces otherwise
    String endpoint = System.getenv("PUBSUB_EMULATOR_HOST");
    ManagedChannel channel =
        ManagedChannelBuilder.forTarget(endpoint).usePlaintext().maxInboundMessageSize(20 << 20).build();
    channels = FixedTransportChannelProvider.create(GrpcTransportChannel.create(channel));
    topics =
        TopicAdminClient.create(
            TopicAdminSettings.newBuilder()
                .setTransportChannelProvider(channels)
                .setCredentialsProvider(NOBODY)
                .build());
    subscriptions =
        SubscriptionAdminClient.create(
            SubscriptionAdminSettings.newBuilder()
                .setTransportChannelProvider(channels)
                .setCredentialsProvider(NOBODY)
                .build());
    schemas =
        SchemaServiceClient.create(
            SchemaServiceSettings.newBuilder()
                .setTransportChannelProvider(channels)
                .setCredentialsProvider(NOBODY)
                .build());
    ExecutorService pool = Executors.newCachedThreadPool();
    List<String> wanted = List.of(arguments);
    checks().forEach((check, body) -> {
      if (wanted.isEmpty() || wanted.contains(check)) {
        pool.submit(() -> {
          try {
            body.run();
            report(check, null);
          } catch (Throwable failure) {
            report(check, failure);
          }
        });
      }
    });
    pool.shutdown();
    pool.awaitTermination(4, TimeUnit.MINUTES);
    System.exit(0); // whatever a failed check left open
  }
}
