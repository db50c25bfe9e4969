package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2"
	vkit "cloud.google.com/go/pubsub/v2/apiv1"
	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var checks = map[string]func(){
	"publish and subscribe": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		published := publish(topic, 500, nil)
		received := receive(subscription.Name, 500, acknowledge)
		ids := map[string]bool{}
		for _, message := range received {
			ids[message.ID] = true
		}
		equal(ids, published)
		equal(numbersOf(received), upTo(500))
	},

	"unary pull": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		publish(topic, 3, nil)
		admin := client.SubscriptionAdminClient
		response := must(admin.Pull(ctx, &pb.PullRequest{Subscription: subscription.Name, MaxMessages: 10}))
		equal(len(response.ReceivedMessages), 3)
		var ackIDs []string
		for _, received := range response.ReceivedMessages {
			ackIDs = append(ackIDs, received.AckId)
		}
		ok(admin.ModifyAckDeadline(ctx, &pb.ModifyAckDeadlineRequest{
			Subscription: subscription.Name, AckIds: ackIDs, AckDeadlineSeconds: 30,
		}))
		ok(admin.Acknowledge(ctx, &pb.AcknowledgeRequest{Subscription: subscription.Name, AckIds: ackIDs}))
	},

	"ordering": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{EnableMessageOrdering: true})
		publisher := client.Publisher(topic.Name)
		publisher.EnableMessageOrdering = true
		expected := map[string][]int{}
		for number := range 200 {
			key := fmt.Sprintf("key-%d", number%5)
			expected[key] = append(expected[key], number)
			publisher.Publish(ctx, &pubsub.Message{Data: []byte(strconv.Itoa(number)), OrderingKey: key})
		}
		publisher.Stop()
		var lock sync.Mutex
		actual := map[string][]int{}
		receive(subscription.Name, 200, func(message *pubsub.Message) {
			lock.Lock()
			defer lock.Unlock()
			number := must(strconv.Atoi(string(message.Data)))
			actual[message.OrderingKey] = append(actual[message.OrderingKey], number)
			message.Ack()
		})
		equal(actual, expected)
	},

	"flow control": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		publish(topic, 50, nil)
		subscriber := client.Subscriber(subscription.Name)
		subscriber.ReceiveSettings.MaxOutstandingMessages = 5
		var now, most atomic.Int64
		received, err := receiveWith(subscriber, 50, wait, func(message *pubsub.Message) {
			if current := now.Add(1); current > most.Load() {
				most.Store(current)
			}
			time.Sleep(10 * time.Millisecond)
			now.Add(-1)
			message.Ack()
		})
		ok(err)
		equal(numbersOf(received), upTo(50))
		if most.Load() > 5 {
			panic(fmt.Sprintf("%d at once", most.Load()))
		}
	},

	"exactly once": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{EnableExactlyOnceDelivery: true})
		publish(topic, 20, nil)
		received := receive(subscription.Name, 20, func(message *pubsub.Message) {
			equal(must(message.AckWithResult().Get(ctx)), pubsub.AcknowledgeStatus(pubsub.AcknowledgeStatusSuccess))
		})
		equal(numbersOf(received), upTo(20))
		again, err := receiveWith(client.Subscriber(subscription.Name), 1, time.Second, acknowledge)
		ok(err)
		equal(len(again), 0)
	},

	"nack and redelivery": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		publish(topic, 10, nil)
		var lock sync.Mutex
		seen := map[string]int{}
		receive(subscription.Name, 20, func(message *pubsub.Message) {
			lock.Lock()
			defer lock.Unlock()
			seen[message.ID]++
			if seen[message.ID] == 1 {
				message.Nack()
			} else {
				message.Ack()
			}
		})
		equal(len(seen), 10)
	},

	"a lease is extended while a message is worked on": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{AckDeadlineSeconds: 10})
		publish(topic, 1, nil)
		received, err := receiveWith(client.Subscriber(subscription.Name), 2, 16*time.Second, func(message *pubsub.Message) {
			time.Sleep(14 * time.Second)
			message.Ack()
		})
		ok(err)
		equal(len(received), 1)
	},

	"dead letter": func() {
		dead, topic := createTopic(), createTopic()
		deadSubscription := createSubscription(dead, &pb.Subscription{})
		subscription := createSubscription(topic, &pb.Subscription{
			DeadLetterPolicy: &pb.DeadLetterPolicy{DeadLetterTopic: dead.Name, MaxDeliveryAttempts: 5},
		})
		publish(topic, 1, map[string]string{"colour": "red"})
		attempts := []int{}
		receive(subscription.Name, 5, func(message *pubsub.Message) {
			attempts = append(attempts, *message.DeliveryAttempt)
			message.Nack()
		})
		equal(attempts, []int{1, 2, 3, 4, 5})
		attributes := receive(deadSubscription.Name, 1, acknowledge)[0].Attributes
		equal(attributes["colour"], "red")
		equal(attributes["CloudPubSubDeadLetterSourceDeliveryCount"], "5")
		equal(attributes["CloudPubSubDeadLetterSourceSubscription"], leaf(subscription.Name))
		equal(attributes["CloudPubSubDeadLetterSourceSubscriptionProject"], projectID)
	},

	"filter": func() {
		topic := createTopic()
		filter := `attributes.colour = "red" AND NOT attributes:old`
		subscription := createSubscription(topic, &pb.Subscription{Filter: filter})
		publish(topic, 1, map[string]string{"number": "0", "colour": "red"})
		publish(topic, 1, map[string]string{"number": "1", "colour": "blue"})
		publish(topic, 1, map[string]string{"number": "2", "colour": "red", "old": "yes"})
		publish(topic, 1, map[string]string{"number": "3", "colour": "red"})
		equal(numbersOf(receive(subscription.Name, 2, acknowledge)), []int{0, 3})
		_, err := client.SubscriptionAdminClient.CreateSubscription(ctx, &pb.Subscription{
			Name: name("subscription"), Topic: topic.Name, Filter: "colour red",
		})
		fails(err, codes.InvalidArgument)
	},

	"seek to a time": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{RetainAckedMessages: true})
		publish(topic, 5, nil)
		receive(subscription.Name, 5, acknowledge)
		seek := func(instant time.Time) {
			must(client.SubscriptionAdminClient.Seek(ctx, &pb.SeekRequest{
				Subscription: subscription.Name, Target: &pb.SeekRequest_Time{Time: timestamppb.New(instant)},
			}))
		}
		seek(time.Now().Add(-time.Hour))
		equal(numbersOf(receive(subscription.Name, 5, acknowledge)), upTo(5))
		publish(topic, 5, nil)
		seek(time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC))
		left, err := receiveWith(client.Subscriber(subscription.Name), 1, 500*time.Millisecond, acknowledge)
		ok(err)
		equal(len(left), 0)
	},

	"snapshots": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		publish(topic, 3, nil)
		admin := client.SubscriptionAdminClient
		snapshot := must(admin.CreateSnapshot(ctx, &pb.CreateSnapshotRequest{
			Name: name("snapshot"), Subscription: subscription.Name,
		}))
		equal(numbersOf(receive(subscription.Name, 3, acknowledge)), upTo(3))
		seek := &pb.SeekRequest{
			Subscription: subscription.Name, Target: &pb.SeekRequest_Snapshot{Snapshot: snapshot.Name},
		}
		must(admin.Seek(ctx, seek))
		equal(numbersOf(receive(subscription.Name, 3, acknowledge)), upTo(3))
		changed := must(admin.UpdateSnapshot(ctx, &pb.UpdateSnapshotRequest{
			Snapshot:   &pb.Snapshot{Name: snapshot.Name, Labels: map[string]string{"team": "billing"}},
			UpdateMask: mask("labels"),
		}))
		equal(changed.Labels, map[string]string{"team": "billing"})
		snapshots := admin.ListSnapshots(ctx, &pb.ListSnapshotsRequest{Project: project})
		found := false
		for one, err := snapshots.Next(); err != iterator.Done; one, err = snapshots.Next() {
			ok(err)
			found = found || one.Name == snapshot.Name
		}
		equal(found, true)
		ok(admin.DeleteSnapshot(ctx, &pb.DeleteSnapshotRequest{Snapshot: snapshot.Name}))
		_, err := admin.Seek(ctx, seek)
		fails(err, codes.NotFound)
	},

	"schemas": checkSchemas,

	"access policies": func() {
		topic := createTopic()
		admin := client.TopicAdminClient
		policy := must(admin.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: topic.Name}))
		equal(len(policy.Bindings), 0)
		members := []string{"user:somebody@example.com"}
		policy.Bindings = []*iampb.Binding{{Role: "roles/pubsub.viewer", Members: members}}
		must(admin.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: topic.Name, Policy: policy}))
		stored := must(admin.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: topic.Name}))
		equal(len(stored.Bindings), 1)
		equal(stored.Bindings[0].Members, members)
		permissions := []string{"pubsub.topics.get"}
		granted := must(admin.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{
			Resource: topic.Name, Permissions: permissions,
		}))
		equal(granted.Permissions, permissions)
	},

	"a message of 9 MB": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		data := bytes.Repeat([]byte("x"), 9_000_000)
		publisher := client.Publisher(topic.Name)
		must(publisher.Publish(ctx, &pubsub.Message{Data: data}).Get(ctx))
		publisher.Stop()
		equal(bytes.Equal(receive(subscription.Name, 1, acknowledge)[0].Data, data), true)
	},

	"update of topics and subscriptions": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		labels := map[string]string{"team": "billing"}
		changed := must(client.TopicAdminClient.UpdateTopic(ctx, &pb.UpdateTopicRequest{
			Topic: &pb.Topic{
				Name: topic.Name, Labels: labels, MessageRetentionDuration: durationpb.New(time.Hour),
			},
			UpdateMask: mask("labels", "message_retention_duration"),
		}))
		equal(changed.Labels, labels)
		equal(changed.MessageRetentionDuration.AsDuration(), time.Hour)
		update := func(settings *pb.Subscription, paths ...string) (*pb.Subscription, error) {
			settings.Name = subscription.Name
			return client.SubscriptionAdminClient.UpdateSubscription(ctx, &pb.UpdateSubscriptionRequest{
				Subscription: settings, UpdateMask: mask(paths...),
			})
		}
		updated := must(update(&pb.Subscription{
			AckDeadlineSeconds: 42,
			Labels:             labels,
			RetryPolicy:        &pb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second)},
		}, "ack_deadline_seconds", "labels", "retry_policy"))
		equal(updated.AckDeadlineSeconds, int32(42))
		equal(updated.Labels, labels)
		equal(updated.RetryPolicy.MinimumBackoff.AsDuration(), time.Second)
		must(update(&pb.Subscription{}, "retry_policy"))
		equal(getSubscription(subscription.Name).RetryPolicy == nil, true)
		_, err := update(&pb.Subscription{Filter: "attributes:a"}, "filter")
		fails(err, codes.InvalidArgument)
	},

	"push configuration": func() {
		topic := createTopic()
		endpoint := "https://example.com/push"
		subscription := createSubscription(topic, &pb.Subscription{PushConfig: &pb.PushConfig{PushEndpoint: endpoint}})
		equal(subscription.PushConfig.PushEndpoint, endpoint)
		ok(client.SubscriptionAdminClient.ModifyPushConfig(ctx, &pb.ModifyPushConfigRequest{
			Subscription: subscription.Name, PushConfig: &pb.PushConfig{},
		}))
		equal(getSubscription(subscription.Name).PushConfig.GetPushEndpoint(), "")
	},

	"detach": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		request := &pb.DetachSubscriptionRequest{Subscription: subscription.Name}
		must(client.TopicAdminClient.DetachSubscription(ctx, request))
		equal(getSubscription(subscription.Name).Detached, true)
		_, err := receiveWith(client.Subscriber(subscription.Name), 1, wait, acknowledge)
		fails(err, codes.FailedPrecondition)
	},

	"lists in pages": func() {
		own := fmt.Sprintf("projects/pages-%d", os.Getpid())
		var expected []string
		for _, id := range []string{"a-topic", "b-topic", "c-topic", "d-topic", "e-topic"} {
			topic := must(client.TopicAdminClient.CreateTopic(ctx, &pb.Topic{Name: own + "/topics/" + id}))
			expected = append(expected, topic.Name)
		}
		var listed []string
		topics := client.TopicAdminClient.ListTopics(ctx, &pb.ListTopicsRequest{Project: own, PageSize: 2})
		for topic, err := topics.Next(); err != iterator.Done; topic, err = topics.Next() {
			listed = append(listed, must(topic, err).Name)
		}
		equal(listed, expected)
	},

	"errors": func() {
		topic := createTopic()
		_, err := client.TopicAdminClient.CreateTopic(ctx, &pb.Topic{Name: topic.Name})
		fails(err, codes.AlreadyExists)
		_, err = client.TopicAdminClient.GetTopic(ctx, &pb.GetTopicRequest{Topic: project + "/topics/missing"})
		fails(err, codes.NotFound)
		publisher := client.Publisher("missing")
		_, err = publisher.Publish(ctx, &pubsub.Message{Data: []byte("x")}).Get(ctx)
		publisher.Stop()
		fails(err, codes.NotFound)
		_, err = client.TopicAdminClient.CreateTopic(ctx, &pb.Topic{Name: project + "/topics/x"})
		fails(err, codes.InvalidArgument)
		_, err = receiveWith(client.Subscriber("missing"), 1, wait, acknowledge)
		fails(err, codes.NotFound)
	},

	"a deleted topic": func() {
		topic := createTopic()
		subscription := createSubscription(topic, &pb.Subscription{})
		publish(topic, 3, nil)
		ok(client.TopicAdminClient.DeleteTopic(ctx, &pb.DeleteTopicRequest{Topic: topic.Name}))
		equal(getSubscription(subscription.Name).Topic, "_deleted-topic_")
		equal(numbersOf(receive(subscription.Name, 3, acknowledge)), upTo(3))
	},
}

func checkSchemas() {
	schemas := must(vkit.NewSchemaClient(
		ctx,
		option.WithEndpoint(os.Getenv("PUBSUB_EMULATOR_HOST")),
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	))
	defer schemas.Close()
	definition := `{"type":"record","name":"State","fields":[{"name":"name","type":"string"},{"name":"order","type":"int"}]}`
	valid, invalid := []byte(`{"name":"Alaska","order":49}`), []byte(`{"name":7}`)
	first := must(schemas.CreateSchema(ctx, &pb.CreateSchemaRequest{
		Parent: project, SchemaId: leaf(name("schema")), Schema: &pb.Schema{Type: pb.Schema_AVRO, Definition: definition},
	}))
	validate := func(message []byte) error {
		_, err := schemas.ValidateMessage(ctx, &pb.ValidateMessageRequest{
			Parent: project, SchemaSpec: &pb.ValidateMessageRequest_Name{Name: first.Name},
			Message: message, Encoding: pb.Encoding_JSON,
		})
		return err
	}
	ok(validate(valid))
	fails(validate(invalid), codes.InvalidArgument)
	_, err := schemas.ValidateSchema(ctx, &pb.ValidateSchemaRequest{
		Parent: project, Schema: &pb.Schema{Type: pb.Schema_AVRO, Definition: `{"type":"nothing"}`},
	})
	fails(err, codes.InvalidArgument)

	topic := must(client.TopicAdminClient.CreateTopic(ctx, &pb.Topic{
		Name: name("topic"), SchemaSettings: &pb.SchemaSettings{Schema: first.Name, Encoding: pb.Encoding_JSON},
	}))
	subscription := createSubscription(topic, &pb.Subscription{})
	publisher := client.Publisher(topic.Name)
	must(publisher.Publish(ctx, &pubsub.Message{Data: valid}).Get(ctx))
	_, err = publisher.Publish(ctx, &pubsub.Message{Data: invalid}).Get(ctx)
	fails(err, codes.InvalidArgument)
	publisher.Stop()
	message := receive(subscription.Name, 1, acknowledge)[0]
	equal(string(message.Data), string(valid))
	equal(message.Attributes["googclient_schemaencoding"], "JSON")
	equal(message.Attributes["googclient_schemarevisionid"], first.RevisionId)

	wider := strings.Replace(definition, "]}", `,{"name":"capital","type":["null","string"],"default":null}]}`, 1)
	second := must(schemas.CommitSchema(ctx, &pb.CommitSchemaRequest{
		Name: first.Name, Schema: &pb.Schema{Name: first.Name, Type: pb.Schema_AVRO, Definition: wider},
	}))
	revisions := schemas.ListSchemaRevisions(ctx, &pb.ListSchemaRevisionsRequest{Name: first.Name})
	var listed []string
	for revision, err := revisions.Next(); err != iterator.Done; revision, err = revisions.Next() {
		listed = append(listed, must(revision, err).RevisionId)
	}
	equal(listed, []string{second.RevisionId, first.RevisionId})
	rollback := &pb.RollbackSchemaRequest{Name: first.Name, RevisionId: first.RevisionId}
	equal(must(schemas.RollbackSchema(ctx, rollback)).Definition, definition)
	must(schemas.DeleteSchemaRevision(ctx, &pb.DeleteSchemaRevisionRequest{Name: first.Name + "@" + second.RevisionId}))
	ok(schemas.DeleteSchema(ctx, &pb.DeleteSchemaRequest{Name: first.Name}))
	_, err = schemas.GetSchema(ctx, &pb.GetSchemaRequest{Name: first.Name})
	fails(err, codes.NotFound)
}
