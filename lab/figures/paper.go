package figures

import (
	"fmt"

	"github.com/scon-project/scon/lab/bench"
)

// figure is a figure of the paper with the measurement that reproduces it.
type figure struct {
	id, title string
	// how describes how our measurement differs from the paper's.
	how     string
	sources []string
	panels  []panel
	claims  []claim
}

// claim is a number in the paper's text.
type claim struct {
	what  string
	paper float64
	ours  estimate
	why   reason
}

// reason explains an expected difference from the paper.
type reason struct {
	more bool // ours is expected to be larger, not smaller
	text string
}

func less(text string) reason { return reason{false, text} }
func more(text string) reason { return reason{true, text} }

// The pairs of modes of most claims.
const (
	containerToNative  = "container/native"
	expressToContainer = "express/container"
	expressToNative    = "express/native"
)

// Reasons for differences that several claims share.
const (
	whyBothDirections = "SCON here bypasses both directions and conntrack, the paper's kernel patch only the outgoing one."
	whySoftirq        = "the edge's share of the softirqs is in our figures, since it is the same machine."
	whySaturate       = "softirqs and sender share one CPU that is always busy, and a sender with a cheaper path sends more packets."
	whyNoQueue        = "the paper's device is at its limit with this load and queues; this machine is not."
	whyIPLayer        = "the container's longer path is a smaller share of the whole on this CPU, the receiver's share of which is in ours."
	whyVeth           = "ours counts the queues at both ends of veth, too."
	whyNative         = "express skips conntrack and Netfilter's hooks, which a native packet passes."
	whyWakeUps        = "broker, subscriber and their wake-ups are most of the latency here, the network is the rest."
)

// figures of the paper that need no other device.
var figures = []figure{
	{
		id: "2", title: "Challenges: CPU usage, throughput and latency of containers",
		how:     "The native and container runs of Fig. 11 and 12. \"Application\" is user and system time of iperf3.",
		sources: []string{"tcp", "roundtrips"},
		panels: []panel{
			{id: "2a", title: "CPU usage, TCP", x: "message size (B), native and container", y: "% of a CPU", source: "tcp",
				modes: nativeAndContainer, groups: bySize("tcp_%d"), layers: cpuLayers},
			{id: "2b", title: "throughput, TCP", x: "message size (B)", y: "Mbit/s", source: "tcp",
				modes: nativeAndContainer, groups: bySize("tcp_%d_mbps")},
			{id: "2c", title: "mean latency", x: "message size (B)", y: "us", source: "roundtrips",
				modes: nativeAndContainer, groups: bySize("rr_%d_mean_us")},
			{id: "2d", title: "99 % latency", x: "message size (B)", y: "us", source: "roundtrips",
				modes: nativeAndContainer, groups: bySize("rr_%d_p99_us")},
		},
		claims: []claim{
			{"softirq CPU, container/native, 1 KB", 2.6, ratio("tcp", containerToNative, "tcp_1024_softirq_pct"), less(whySaturate)},
			{"throughput, container/native, 1 KB", 0.41, ratio("tcp", containerToNative, "tcp_1024_mbps"), more(whyIPLayer)},
			{"throughput, container/native, mean of sizes", 0.56, ratio("tcp", containerToNative, every("tcp_%d_mbps")...), more(whyIPLayer)},
			{"mean latency, container/native, mean of sizes", 2, ratio("roundtrips", containerToNative, every("rr_%d_mean_us")...), less(whyIPLayer)},
			{"99 % latency, container/native, mean of sizes", 2, ratio("roundtrips", containerToNative, every("rr_%d_p99_us")...), less(whyIPLayer)},
		},
	},
	{
		id: "4", title: "Where a container's packet spends its time",
		how: "A 64-byte datagram in one direction, as `scon profile` follows it; the paper follows TCP and adds up function symbols. " +
			"The express bar belongs to Fig. 13.",
		sources: []string{profileSource},
		claims: []claim{
			{"whole call, container/native", 2, callRatio(bench.Container, bench.Native), less(whyIPLayer)},
			{"share of the second IP layer in what a container has more", 0.63, secondLayerShare, less(whyVeth)},
		},
	},
	{
		id: "8", title: "HTTP: nginx under 2000 requests/s for 64 bytes",
		how: "fortio sends the requests, over four kept connections. Server and client share a CPU; " +
			"\"application\" is nginx without the softirqs on top of it, and SCON's daemon.",
		sources: []string{"http"},
		panels: []panel{
			{id: "8a", title: "CPU usage, HTTP", y: "% of a CPU", source: "http", groups: []group{{"", "http"}}, layers: cpuLayers},
			{id: "8b", title: "latency, HTTP", y: "us", source: "http",
				groups: []group{{"mean", "http_mean_us"}, {"median", "http_p50_us"}}},
		},
		claims: []claim{
			{"CPU, express/container", 0.81, ratio("http", expressToContainer, "http_cpu_pct"), more("nginx itself has a larger share here, which no path changes.")},
			{"softirq CPU, express/container", 0.74, ratio("http", expressToContainer, "http_softirq_pct"), less(whyBothDirections)},
			{"CPU, gap closed", 0.25, gap("http", "http_cpu_pct"), more(whyBothDirections)},
			{"mean latency, container/native", 14.25, ratio("http", containerToNative, "http_mean_us"), less(whyNoQueue)},
			{"mean latency, express/container", 0.1, ratio("http", expressToContainer, "http_mean_us"), more(whyNoQueue)},
			{"mean latency, express/native", 1.31, ratio("http", expressToNative, "http_mean_us"), less(whyBothDirections)},
		},
	},
	{
		id: "9", title: "MQTT: a million 64-byte messages a minute",
		how: "MQTT 5, QoS 0. The publisher is on the device, mosquitto and the subscriber at the edge, on another CPU. " +
			"\"Application\" is the publisher without the softirqs on top of it, and SCON's daemon.",
		sources: []string{"mqtt"},
		panels: []panel{
			{id: "9a", title: "CPU usage, MQTT", y: "% of a CPU", source: "mqtt", groups: []group{{"", "mqtt"}}, layers: cpuLayers},
			{id: "9b", title: "latency, MQTT", y: "us", source: "mqtt",
				groups: []group{{"mean", "mqtt_mean_us"}, {"median", "mqtt_p50_us"}}},
		},
		claims: []claim{
			{"softirq CPU, container/native", 2.2, ratio("mqtt", containerToNative, "mqtt_softirq_pct"), less(whySoftirq)},
			{"softirq CPU, express/container", 0.76, ratio("mqtt", expressToContainer, "mqtt_softirq_pct"), less(whyBothDirections)},
			{"mean latency, container/native", 1.5, ratio("mqtt", containerToNative, "mqtt_mean_us"), less(whyNoQueue)},
			{"mean latency, express/container", 0.69, ratio("mqtt", expressToContainer, "mqtt_mean_us"), more(whyNoQueue)},
			{"mean latency, express/native", 1.05, ratio("mqtt", expressToNative, "mqtt_mean_us"), less(whyBothDirections)},
		},
	},
	{
		id: "10", title: "MQTT latency at intervals of 10 s to 1 ms",
		how:     "As Fig. 9, all on one CPU. The paper's intervals are 1 s to 1 ms, and so are the means'. A connection's lease sends a packet by the regular path every 45 s: of messages at longer intervals none goes express.",
		sources: []string{"intervals"},
		panels: []panel{{id: "10", title: "MQTT latency", x: "interval", y: "us, median", source: "intervals",
			groups: []group{{"10 s", "interval_10000ms_p50_us"}, {"1 s", "interval_1000ms_p50_us"}, {"0.1 s", "interval_100ms_p50_us"},
				{"10 ms", "interval_10ms_p50_us"}, {"1 ms", "interval_1ms_p50_us"}}}},
		claims: []claim{
			{"latency, express/container, mean of intervals", 0.52, ratio("intervals", expressToContainer, everyInterval...), more(whyWakeUps)},
			{"latency, express/native, mean of intervals", 1.07, ratio("intervals", expressToNative, everyInterval...), less(whyWakeUps)},
		},
	},
	{
		id: "11", title: "CPU usage for softirqs and throughput of TCP",
		how: "iperf3 with TCP_NODELAY from the device to the edge, which is on another CPU. " +
			"The softirq time per packet is ours: it does not depend on how much is sent.",
		sources: []string{"tcp"},
		panels: []panel{
			{id: "11a", title: "softirq CPU, TCP", x: "message size (B)", y: "% of a CPU", source: "tcp", groups: bySize("tcp_%d_softirq_pct")},
			{id: "11b", title: "throughput, TCP", x: "message size (B)", y: "Mbit/s", source: "tcp", groups: bySize("tcp_%d_mbps")},
		},
		claims: []claim{
			{"softirq CPU, express/container, mean of sizes", 0.81, ratio("tcp", expressToContainer, every("tcp_%d_softirq_pct")...), more(whySaturate)},
			{"softirq CPU, express/container, 64 B", 0.74, ratio("tcp", expressToContainer, "tcp_64_softirq_pct"), more(whySaturate)},
			{"throughput, express/container, mean of sizes", 1.2, ratio("tcp", expressToContainer, every("tcp_%d_mbps")...), more(whyBothDirections)},
			{"throughput, express/container, 512 B", 1.45, ratio("tcp", expressToContainer, "tcp_512_mbps"), more(whyBothDirections)},
			{"throughput, container/native, mean of sizes", 0.6, ratio("tcp", containerToNative, every("tcp_%d_mbps")...), more(whyIPLayer)},
			{"throughput, express/native, mean of sizes", 0.71, ratio("tcp", expressToNative, every("tcp_%d_mbps")...), more(whyBothDirections)},
			{"throughput, gap closed, mean of sizes", 0.28, gap("tcp", every("tcp_%d_mbps")...), more(whyBothDirections)},
			{"throughput, gap closed, 512 B", 0.47, gap("tcp", "tcp_512_mbps"), more(whyBothDirections)},
		},
	},
	{
		id: "12", title: "Latency per packet",
		how:     "TCP round trips by the bench's own peers, both on one CPU, in the place of netperf.",
		sources: []string{"roundtrips"},
		panels: []panel{
			{id: "12a", title: "mean latency", x: "message size (B)", y: "us", source: "roundtrips", groups: bySize("rr_%d_mean_us")},
			{id: "12b", title: "99 % latency", x: "message size (B)", y: "us", source: "roundtrips", groups: bySize("rr_%d_p99_us")},
		},
		claims: []claim{
			{"mean, express/container, mean of sizes", 0.75, ratio("roundtrips", expressToContainer, every("rr_%d_mean_us")...), less(whyBothDirections)},
			{"mean, gap closed, mean of sizes", 0.49, gap("roundtrips", every("rr_%d_mean_us")...), more(whyBothDirections)},
			{"99 %, express/container, mean of sizes", 0.68, ratio("roundtrips", expressToContainer, every("rr_%d_p99_us")...), less(whyBothDirections)},
			{"99 %, gap closed, mean of sizes", 0.66, gap("roundtrips", every("rr_%d_p99_us")...), more(whyBothDirections)},
		},
	},
	{
		id: "13", title: "Processing time per packet and layer",
		how:     "As Fig. 4.",
		sources: []string{profileSource},
		claims: []claim{
			{"whole call, container/native", 1.99, callRatio(bench.Container, bench.Native), less(whyIPLayer)},
			{"whole call, express/container", 0.57, callRatio(bench.Express, bench.Container), more(whyIPLayer)},
			{"whole call, express/native", 1.2, callRatio(bench.Express, bench.Native), less(whyNative)},
		},
	},
	{
		id: "14", title: "Completion times of IoT flows, 99 %",
		how: "Flows of 100 to 1400 bytes, short ones more often, one after the other over one connection, both ends on one CPU; " +
			"a flow is complete when the server's one-byte answer is there.",
		sources: []string{"flows"},
		panels: []panel{{id: "14", title: "flow completion time", y: "us", source: "flows",
			groups: []group{{"median", "flows_p50_us"}, {"99 %", "flows_p99_us"}}}},
		claims: []claim{
			{"99 %, express/container", 0.8, ratio("flows", expressToContainer, "flows_p99_us"), less(whyBothDirections)},
			{"99 %, gap closed (12 ms to 2.9 ms)", 0.76, gap("flows", "flows_p99_us"), more(whyBothDirections)},
		},
	},
	{
		id: "15", title: "CPU usage for softirqs and throughput of UDP",
		how:     "As Fig. 11, with UDP and without a limit of the rate. What arrives is counted.",
		sources: []string{"udp"},
		panels: []panel{
			{id: "15a", title: "softirq CPU, UDP", x: "message size (B)", y: "% of a CPU", source: "udp", groups: bySize("udp_%d_softirq_pct")},
			{id: "15b", title: "throughput, UDP", x: "message size (B)", y: "Mbit/s", source: "udp", groups: bySize("udp_%d_mbps")},
		},
		claims: []claim{
			{"softirq CPU, express/container, mean of sizes", 0.67, ratio("udp", expressToContainer, every("udp_%d_softirq_pct")...), more(whySaturate)},
			{"throughput, express/container, mean of sizes", 1.31, ratio("udp", expressToContainer, every("udp_%d_mbps")...), more(whyBothDirections)},
			{"throughput, gap closed, mean of sizes", 0.36, gap("udp", every("udp_%d_mbps")...), more(whyBothDirections)},
		},
	},
	{
		id: "16", title: "Throughput of one to four containers",
		how:     "All containers, or native processes, share one CPU, where the paper's have one each.",
		sources: []string{"scale"},
		panels: []panel{
			{id: "16a", title: "throughput, 64 B", x: "containers", y: "Mbit/s", source: "scale", groups: byContainers(64)},
			{id: "16b", title: "throughput, 1 KB", x: "containers", y: "Mbit/s", source: "scale", groups: byContainers(1024)},
		},
		claims: []claim{
			{"throughput of express, 4 containers/1", 4.2, growth("scale", bench.Express.Name, scaleMetric(64, 4), scaleMetric(64, 1)),
				less("the paper's containers have a CPU each; ours share one, so that 1 is what perfect sharing gives.")},
		},
	},
}

var (
	nativeAndContainer = []string{bench.Native.Name, bench.Container.Name}
	cpuLayers          = []group{{"softirq", "_softirq_pct"}, {"application", "_process_pct"}}
	everyInterval      = []string{"interval_1000ms_p50_us", "interval_100ms_p50_us", "interval_10ms_p50_us", "interval_1ms_p50_us"}
)

// bySize returns a group for every message size.
func bySize(format string) (groups []group) {
	for _, size := range sizes {
		groups = append(groups, group{fmt.Sprint(size), fmt.Sprintf(format, size)})
	}
	return groups
}

// every returns the metrics of a format for all sizes.
func every(format string) (metrics []string) {
	for _, g := range bySize(format) {
		metrics = append(metrics, g.metric)
	}
	return metrics
}

// byContainers returns a group for every number of containers.
func byContainers(size int) (groups []group) {
	for _, n := range Full.Containers {
		groups = append(groups, group{fmt.Sprint(n), scaleMetric(size, n)})
	}
	return groups
}
