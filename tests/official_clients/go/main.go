// What applications do with the official Go client, against the broker at PUBSUB_EMULATOR_HOST. One line of JSON per
// check on standard output: {"check": NAME, "outcome": "passed" | "failed", "reason": TEXT}. Arguments: names of checks.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	pb "cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

const (
	projectID = "official-go"
	project   = "projects/" + projectID
	wait      = 30 * time.Second
)

var (
	ctx     = context.Background()
	client  *pubsub.Client
	numbers atomic.Int64
)

// ── what the checks share ────────────────────────────────────────────────────────────────────────────────────────────

func name(kind string) string {
	return fmt.Sprintf("%s/%ss/%s-%d-%d", project, kind, kind, os.Getpid(), numbers.Add(1))
}

func must[T any](value T, err error) T {
	ok(err)
	return value
}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(actual, expected any) {
	if !reflect.DeepEqual(actual, expected) {
		panic(fmt.Sprintf("%v instead of %v", actual, expected))
	}
}

func fails(err error, code codes.Code) {
	if status.Code(err) != code {
		panic(fmt.Sprintf("%v instead of %v", err, code))
	}
}

func createTopic() *pb.Topic {
	return must(client.TopicAdminClient.CreateTopic(ctx, &pb.Topic{Name: name("topic")}))
}

func createSubscription(topic *pb.Topic, settings *pb.Subscription) *pb.Subscription {
	settings.Name = name("subscription")
	settings.Topic = topic.Name
	return must(client.SubscriptionAdminClient.CreateSubscription(ctx, settings))
}

func getSubscription(name string) *pb.Subscription {
	request := &pb.GetSubscriptionRequest{Subscription: name}
	return must(client.SubscriptionAdminClient.GetSubscription(ctx, request))
}

func publish(topic *pb.Topic, count int, attributes map[string]string) map[string]bool {
	publisher := client.Publisher(topic.Name)
	defer publisher.Stop()
	var results []*pubsub.PublishResult
	for number := range count {
		own := map[string]string{"number": strconv.Itoa(number)}
		for key, value := range attributes {
			own[key] = value
		}
		results = append(results, publisher.Publish(ctx, &pubsub.Message{Data: []byte("x"), Attributes: own}))
	}
	ids := map[string]bool{}
	for _, result := range results {
		ids[must(result.Get(ctx))] = true
	}
	return ids
}

func acknowledge(message *pubsub.Message) { message.Ack() }

// The first `count` messages, each given to `settle` in the client's own concurrency.
func receive(subscription string, count int, settle func(*pubsub.Message)) []*pubsub.Message {
	messages, err := receiveWith(client.Subscriber(subscription), count, wait, settle)
	ok(err)
	if len(messages) < count {
		panic(fmt.Sprintf("%d of %d messages came", len(messages), count))
	}
	return messages
}

func receiveWith(
	subscriber *pubsub.Subscriber, count int, wait time.Duration, settle func(*pubsub.Message),
) ([]*pubsub.Message, error) {
	limited, stop := context.WithTimeout(ctx, wait)
	defer stop()
	var lock sync.Mutex
	var messages []*pubsub.Message
	err := subscriber.Receive(limited, func(_ context.Context, message *pubsub.Message) {
		settle(message)
		lock.Lock()
		defer lock.Unlock()
		messages = append(messages, message)
		if len(messages) == count {
			stop()
		}
	})
	return messages, err
}

func numbersOf(messages []*pubsub.Message) []int {
	found := []int{}
	for _, message := range messages {
		found = append(found, must(strconv.Atoi(message.Attributes["number"])))
	}
	sort.Ints(found)
	return found
}

func upTo(count int) []int {
	all := []int{}
	for number := range count {
		all = append(all, number)
	}
	return all
}

func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

func leaf(name string) string { return name[strings.LastIndex(name, "/")+1:] }

// ── running them ─────────────────────────────────────────────────────────────────────────────────────────────────────

type outcome struct {
	Check   string `json:"check"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
}

func ownFrames(stack []byte) string {
	frames := ""
	for line := range strings.Lines(string(stack)) {
		if strings.Contains(line, "/checks.go:") {
			frames += "\n" + strings.TrimSpace(line)
		}
	}
	return frames
}

func run(check string, body func()) (result outcome) {
	defer func() {
		if failure := recover(); failure != nil {
			result = outcome{check, "failed", fmt.Sprintf("%v%s", failure, ownFrames(debug.Stack()))}
		}
	}()
	body()
	return outcome{check, "passed", ""}
}

func main() {
	client = must(pubsub.NewClient(ctx, projectID))
	results := make(chan outcome)
	count := 0
	for check, body := range checks {
		if len(os.Args) == 1 || slices.Contains(os.Args[1:], check) {
			count++
			go func() { results <- run(check, body) }()
		}
	}
	for range count {
		fmt.Println(string(must(json.Marshal(<-results))))
	}
}
