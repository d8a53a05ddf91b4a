package figures

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/scon-project/scon/lab/bench"
	"github.com/scon-project/scon/test/bed/lab"
)

// mqttRate is the rate of Fig. 9: a million messages in a minute.
const mqttRate = 1_000_000 / 60

// brokerAddr is the address that mosquitto listens on, at the edge.
var brokerAddr = netip.AddrPortFrom(lab.EdgeAddr, 1883)

// brokerConf makes mosquitto queue every message, so that only the network can lose
// one.
const brokerConf = `listener 1883 %s
allow_anonymous true
max_queued_messages 0
set_tcp_nodelay true
persistence false
log_type error
user root
`

// mqttExperiment is Fig. 9: a publisher on the device; broker and subscriber at the
// edge, on another CPU.
func mqttExperiment(e Effort) bench.Experiment {
	return bench.Experiment{
		Short: "16,667 MQTT messages of 64 bytes a second through mosquitto",
		Steps: []bench.Step{{
			Name: "mqtt",
			Metrics: []bench.Metric{
				{Name: "mqtt_mean_us", Unit: "us"},
				{Name: "mqtt_p50_us", Unit: "us"},
				{Name: "mqtt_p99_us", Unit: "us"},
				{Name: "mqtt_softirq_pct", Unit: "% of a CPU"},
				{Name: "mqtt_process_pct", Unit: "% of a CPU"},
				{Name: "mqtt_cpu_pct", Unit: "% of a CPU"},
				{Name: "mqtt_rate", Unit: "messages/s"},
			},
			Traffic: func(ctx context.Context, s *bench.Site) (map[string]float64, error) {
				return runMQTT(ctx, s, "mqtt", s.FirstCPU, PublishOrder{
					Interval: time.Second / mqttRate, Messages: int(e.MQTT.Seconds() * mqttRate),
				})
			},
		}},
	}
}

// intervalsExperiment is Fig. 10: the same at low rates, all on one CPU.
func intervalsExperiment(e Effort) bench.Experiment {
	x := bench.Experiment{Short: "latency of MQTT messages at intervals of 10 s to 1 ms"}
	for _, i := range e.Intervals {
		name := i.name()
		x.Steps = append(x.Steps, bench.Step{
			Name: name,
			Metrics: []bench.Metric{
				{Name: name + "_mean_us", Unit: "us"},
				{Name: name + "_p50_us", Unit: "us"},
				{Name: name + "_p99_us", Unit: "us"},
			},
			// The lease sends one packet a second on the regular path, and with few
			// messages the first packets of the connections have a large share.
			FewExpress: i.Length > time.Millisecond,
			Traffic: func(ctx context.Context, s *bench.Site) (map[string]float64, error) {
				values, err := runMQTT(ctx, s, name, s.SecondCPU, PublishOrder{Interval: i.Length, Messages: i.Messages, Before: i.Before})
				maps.DeleteFunc(values, func(metric string, _ float64) bool { return !strings.HasSuffix(metric, "_us") })
				return values, err
			},
		})
	}
	return x
}

func (i Interval) name() string { return fmt.Sprintf("interval_%dms", i.Length.Milliseconds()) }

func intervalTakes(e Effort, step bench.Step) time.Duration {
	for _, i := range e.Intervals {
		if i.name() == step.Name {
			return i.Length * time.Duration(i.Before+i.Messages)
		}
	}
	return 0
}

// runMQTT sends the messages of one order through the broker. Only Fig. 9 uses
// NAME_softirq_pct and the other metrics of processor time.
func runMQTT(ctx context.Context, s *bench.Site, name string, publisherCPU int, what PublishOrder) (values map[string]float64, err error) {
	stopBroker, err := startBroker(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopBroker()) }()

	out, in := io.Pipe()
	defer out.Close()
	subscriber, err := order(ctx, s, lab.Edge, s.SecondCPU, "subscribe", SubscribeOrder{Broker: brokerAddr.String()}, in)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		err := subscriber.end()
		in.Close()
		ended <- err
	}()
	defer func() {
		if err != nil {
			subscriber.Process.Kill()
			err = errors.Join(err, <-ended)
		}
	}()
	reports := json.NewDecoder(bufio.NewReader(out))
	var received Report
	if err := reports.Decode(&received); err != nil { // the subscriber is ready
		return nil, fmt.Errorf("subscribe: %w", err)
	}

	cost, err := startCost(s, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cost.Close()) }()
	what.Broker, what.WarmUp = brokerAddr.String(), warmUp
	sent, err := publish(ctx, s, publisherCPU, cost, what)
	if err != nil {
		return nil, err
	}
	if err := reports.Decode(&received); err != nil {
		return nil, fmt.Errorf("receive the messages: %w", err)
	}
	if received.Messages != what.Messages {
		return nil, fmt.Errorf("%d messages of %d arrived", received.Messages, what.Messages)
	}
	values, err = cost.values(name, sent.Elapsed, sent.CPU)
	if err != nil {
		return nil, err
	}
	values[name+"_mean_us"] = microseconds(received.Mean)
	values[name+"_p50_us"] = microseconds(received.P50)
	values[name+"_p99_us"] = microseconds(received.P99)
	values[name+"_rate"] = float64(sent.Messages) / sent.Elapsed.Seconds()
	return values, <-ended
}

// publish sends the messages and watches the sending process.
func publish(ctx context.Context, s *bench.Site, cpu int, cost *cost, what PublishOrder) (sent Report, err error) {
	out, in := io.Pipe()
	publisher, err := order(ctx, s, s.Node(1), cpu, "publish", what, in)
	if err != nil {
		return Report{}, err
	}
	decoded := make(chan error, 1)
	go func() { decoded <- json.NewDecoder(out).Decode(&sent) }()
	watchErr := cost.watch(publisher.Process.Pid)
	err = publisher.end()
	in.Close()
	return sent, errors.Join(watchErr, err, <-decoded)
}

// startBroker starts mosquitto at the edge.
func startBroker(ctx context.Context, s *bench.Site) (stop func() error, err error) {
	folder, err := os.MkdirTemp("", "sconbench")
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(folder, "mosquitto.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, brokerConf, brokerAddr.Addr()), 0o644); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	broker, err := mosquitto.start(ctx, s, lab.Edge, s.SecondCPU, nil, nil, "-c", conf)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if err := broker.waitListening(ctx, s, lab.Edge, brokerAddr.Port()); err != nil {
		broker.stop()
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return func() error {
		broker.stop()
		return os.RemoveAll(folder)
	}, nil
}
