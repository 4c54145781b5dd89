// Package driver reads requests of the client tests from standard input, one JSON object a line, and answers them on
// standard output; tests/integration/clients/drivers/program.py is the other side.
package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// Settings is the program's one argument.
type Settings struct {
	Bootstrap        string `json:"bootstrap"`
	SessionTimeoutMs int    `json:"session_timeout_ms"`
	HeartbeatMs      int    `json:"heartbeat_ms"`
	TimeoutMs        int    `json:"timeout_ms"`
	Login            Login  `json:"login"`
}

// Brokers lists the servers of Bootstrap.
func (s Settings) Brokers() []string { return strings.Split(s.Bootstrap, ",") }

// SessionTimeout of a group's members.
func (s Settings) SessionTimeout() time.Duration {
	return time.Duration(s.SessionTimeoutMs) * time.Millisecond
}

// Heartbeat interval of a group's members.
func (s Settings) Heartbeat() time.Duration { return time.Duration(s.HeartbeatMs) * time.Millisecond }

// Bytes is base64 in JSON; nil is null, which differs from empty.
type Bytes []byte

// Header of a record.
type Header struct {
	Name  string `json:"name"`
	Value Bytes  `json:"value"`
}

// Record is a message to produce, or one that was consumed.
type Record struct {
	Topic     string   `json:"topic,omitempty"`
	Offset    int64    `json:"offset"`
	Partition int32    `json:"partition"`
	Key       Bytes    `json:"key"`
	Value     Bytes    `json:"value"`
	Headers   []Header `json:"headers"`
	Timestamp int64    `json:"timestamp"`
}

// Rebalance tells the partitions of the first member alone, of both, and of the second after the first has left.
type Rebalance struct {
	Alone  []int32 `json:"alone"`
	First  []int32 `json:"first"`
	Second []int32 `json:"second"`
	Left   []int32 `json:"left"`
}

// GroupState as the client library reports it.
type GroupState struct {
	State   string `json:"state"`
	Members int    `json:"members"`
}

// Client is one library.
type Client interface {
	CreateTopic(ctx context.Context, topic string, partitions int32) error
	DeleteTopic(ctx context.Context, topic string) error
	Partitions(ctx context.Context, topic string) (int, error)
	Produce(ctx context.Context, topic, codec string, idempotent bool, messages []Record) error
	Consume(ctx context.Context, topics []string, group string, count int) ([]Record, error)
	OffsetsForTime(ctx context.Context, topic string, timestamp int64) (map[int32]int64, error)
	FirstOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	DeleteRecords(ctx context.Context, topic string, before map[int32]int64) error
	Rebalance(ctx context.Context, topic, group, assignor string) (Rebalance, error)
	Groups(ctx context.Context) ([]string, error)
	DescribeGroup(ctx context.Context, group string) (GroupState, error)
	DeleteGroup(ctx context.Context, group string) error
}

// Exchanger is a library that has a client which outlives one operation.
type Exchanger interface {
	// Exchange produces a record to partition 0, consumes it, and refreshes metadata; the same client does so each
	// time.  It returns the partition's leader by that metadata.
	Exchange(ctx context.Context, topic string) (int32, error)
}

// Streamer is a library that shows what becomes of a producer in a long life.
type Streamer interface {
	// Stream produces "0", "1", … to partition 0 for this long, with one producer.  It returns how many were acknowledged.
	Stream(ctx context.Context, topic string, seconds float64) (int, error)
}

// Transactor is a library with transactions.
type Transactor interface {
	// Transact answers an operation that begins with "txn", given as its line.
	Transact(ctx context.Context, operation string, line []byte) (any, error)
}

type request struct {
	Op         string          `json:"op"`
	Topic      string          `json:"topic"`
	Topics     []string        `json:"topics"`
	Partitions int32           `json:"partitions"`
	Codec      string          `json:"codec"`
	Idempotent bool            `json:"idempotent"`
	Messages   []Record        `json:"messages"`
	Group      string          `json:"group"`
	Count      int             `json:"count"`
	Timestamp  int64           `json:"timestamp"`
	Before     map[int32]int64 `json:"before"`
	Assignor   string          `json:"assignor"`
	Seconds    float64         `json:"seconds"`
}

const lineBytesMax = 64 << 20

// Main answers requests until standard input ends.
func Main(connect func(Settings) (Client, error)) {
	var settings Settings
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		fail(err)
	}
	client, err := connect(settings)
	if err != nil {
		fail(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fail(err)
		}
		result, err := answer(client, asked, lines.Bytes(), time.Duration(settings.TimeoutMs)*time.Millisecond)
		if err != nil {
			err = answers.Encode(map[string]string{"error": err.Error()})
		} else {
			err = answers.Encode(map[string]any{"ok": result})
		}
		if err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func answer(client Client, r request, line []byte, timeout time.Duration) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	switch r.Op {
	case "create_topic":
		return nil, client.CreateTopic(ctx, r.Topic, r.Partitions)
	case "delete_topic":
		return nil, client.DeleteTopic(ctx, r.Topic)
	case "partitions":
		return client.Partitions(ctx, r.Topic)
	case "produce":
		return nil, client.Produce(ctx, r.Topic, r.Codec, r.Idempotent, r.Messages)
	case "consume":
		return client.Consume(ctx, r.Topics, r.Group, r.Count)
	case "offsets_for_time":
		return client.OffsetsForTime(ctx, r.Topic, r.Timestamp)
	case "first_offsets":
		return client.FirstOffsets(ctx, r.Topic)
	case "delete_records":
		return nil, client.DeleteRecords(ctx, r.Topic, r.Before)
	case "rebalance":
		return client.Rebalance(ctx, r.Topic, r.Group, r.Assignor)
	case "groups":
		return client.Groups(ctx)
	case "describe_group":
		return client.DescribeGroup(ctx, r.Group)
	case "delete_group":
		return nil, client.DeleteGroup(ctx, r.Group)
	case "exchange":
		if exchanger, ok := client.(Exchanger); ok {
			return exchanger.Exchange(ctx, r.Topic)
		}
	case "stream":
		if streamer, ok := client.(Streamer); ok {
			return streamer.Stream(ctx, r.Topic, r.Seconds)
		}
	}
	if transactor, ok := client.(Transactor); ok && strings.HasPrefix(r.Op, "txn") {
		return transactor.Transact(ctx, r.Op, line)
	}
	return nil, fmt.Errorf("unknown operation %q", r.Op)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
