package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scon-project/scon/internal/config"
	"github.com/scon-project/scon/test/bed/check"
)

const shipped = "../../packaging/scon.yaml"

func TestDefaultIsValid(t *testing.T) {
	if err := config.Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestShippedFileIsTheDefault(t *testing.T) {
	got, err := config.Load(shipped)
	if err != nil {
		t.Fatal(err)
	}
	if diff := check.Diff(config.Default(), got); diff != "" {
		t.Errorf("packaging/scon.yaml is not the default (-default +file):\n%s", diff)
	}
}

func TestShippedFileNamesEveryKey(t *testing.T) {
	content, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range config.Names() {
		words := strings.Split(key, ".")
		line := "\n" + strings.Repeat("  ", len(words)-1) + words[len(words)-1] + ": "
		if !strings.Contains(string(content), line) {
			t.Errorf("packaging/scon.yaml does not name %s", key)
		}
	}
}

func TestReadSetsEveryKey(t *testing.T) {
	got, err := config.Read("scon.yaml", strings.NewReader(`
bridges: [docker0, br-lan]
uplinks:
  - eth0
connections: 64
per_container_share: 100
admit: 2
lease: 10ms
lease_max: 2m
lease_packets: 16777216
flush_idle: 1h
exact_counters: [billing, "of a chain"]
regular: [eth1, name=db, label=a.b, "label=c=d=e"]
log: {level: debug, format: json}
metrics: 10.0.0.1:9477
health: "[::1]:9480"
web: /run/scon/web.sock
socket_group: "docker"
startup:
  enabled: true
  networks: [/a.conf, /b.conflist]
  env_networks: [pods, "of tests"]
  address_cooldown: 0s
  stage_log: /var/log/stages
  pool: {warm_target: 5, minimum: 1, maximum: 6, memory_limit: 2MiB, cooldown: 1h}
  limits: {netns: 1, add_cni: 2, cgroup: 3, attach_if: 4, start_vm: 5, timeout: 10ms}
pipe: {enabled: true, allow: [10.0.0.0/8, 172.17.0.0/16], memory_limit: 1GiB, per_container_share: 25, engines: [bpf, unix], copy_device: true}
docker: {enabled: true, socket: /run/docker/plugins/fast.sock, directory: /srv/scon}
`))
	if err != nil {
		t.Fatal(err)
	}
	exactly := "d=e"
	want := config.Config{
		Bridges:           config.Devices{"docker0", "br-lan"},
		Uplinks:           config.Devices{"eth0"},
		Connections:       64,
		PerContainerShare: 100,
		Admit:             2,
		Lease:             10 * time.Millisecond,
		LeaseMax:          2 * time.Minute,
		LeasePackets:      16777216,
		FlushIdle:         time.Hour,
		ExactCounters:     []string{"billing", "of a chain"},
		Regular:           []config.Selector{{Device: "eth1"}, {Name: "db"}, {Label: "a.b"}, {Label: "c", Value: &exactly}},
		Log:               config.Log{Level: slog.LevelDebug, Format: config.FormatJSON},
		Metrics:           "10.0.0.1:9477",
		Health:            "[::1]:9480",
		Web:               "/run/scon/web.sock",
		SocketGroup:       "docker",
		Startup: config.Startup{
			Enabled: true, Networks: []string{"/a.conf", "/b.conflist"}, EnvNetworks: []string{"pods", "of tests"}, StageLog: "/var/log/stages",
			Pool:   config.Pool{WarmTarget: 5, Minimum: 1, Maximum: 6, MemoryLimit: 2 << 20, Cooldown: time.Hour},
			Limits: config.Limits{NetNS: 1, AddCNI: 2, Cgroup: 3, AttachIf: 4, StartVM: 5, Timeout: 10 * time.Millisecond},
		},
		Pipe: config.Pipe{
			Enabled: true, MemoryLimit: 1 << 30, PerContainerShare: 25, Engines: []string{"bpf", "unix"}, CopyDevice: true,
			Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.17.0.0/16")},
		},
		Docker: config.Docker{Enabled: true, Socket: "/run/docker/plugins/fast.sock", Directory: "/srv/scon"},
	}
	if diff := check.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A service hands its settings over as JSON when it begins again.
	again := config.Default()
	text, err := json.Marshal(got)
	if err = errors.Join(err, json.Unmarshal(text, &again)); err != nil || check.Diff(got, again) != "" {
		t.Errorf("as JSON: %v, %s", err, check.Diff(got, again))
	}
}

func TestReadKeepsDefaultsOfKeysLeftOut(t *testing.T) {
	for _, content := range []string{"# nothing\n", "admit: 8\n", "---\nlog: {}\n"} {
		got, err := config.Read("scon.yaml", strings.NewReader(content))
		if err != nil {
			t.Errorf("%q: %v", content, err)
		}
		if diff := check.Diff(config.Default(), got); diff != "" {
			t.Errorf("%q (-default +got):\n%s", content, diff)
		}
	}
}

// Metrics are bound to the loopback address unless the setting has another address.
func TestMetricsAtLoopback(t *testing.T) {
	got, err := config.Read("scon.yaml", strings.NewReader("metrics: :9477\n"))
	if err != nil || got.Metrics != "127.0.0.1:9477" {
		t.Errorf("got %q, %v", got.Metrics, err)
	}
}

// TestReadRefuses pairs content with its complete error.
func TestReadRefuses(t *testing.T) {
	for content, want := range map[string]string{
		"":                                 `f: is empty: remove the file to use the defaults, or set at least one key`,
		" \n\n":                            `f: is empty: remove the file to use the defaults, or set at least one key`,
		"admit: 4\nupink: auto\n":          `f:2:1: unknown key "upink": did you mean "uplinks"?`,
		"colour: red\n":                    `f:1:1: unknown key "colour"`,
		"log:\n  lvl: info\n":              `f:2:3: unknown key "log.lvl": did you mean "log.level"?`,
		"pipe: {allow: [10.0.0.1/8]}\n":    `f:1:16: pipe.allow has "10.0.0.1/8": want a list of IPv4 networks such as [172.17.0.0/16], [] for none`,
		"pipe: {allow: [\"fe80::/8\"]}\n":  `f:1:16: pipe.allow has "fe80::/8": want a list of IPv4 networks such as [172.17.0.0/16], [] for none`,
		"docker: {socket: scon.sock}\n":    `f:1:18: docker.socket is "scon.sock": want an absolute path such as /run/docker/plugins/scon.sock`,
		"docker: {directory: 5}\n":         `f:1:21: docker.directory is 5: want an absolute path such as /var/lib/scon/docker`,
		"pipe: {engines: [bpff]}\n":        `f:1:18: pipe.engines has "bpff": want a list of engines of sealed, bpf, copier, unix; at least one: did you mean "bpf"?`,
		"pipe: {engines: []}\n":            `f:1:17: pipe.engines is empty: want a list of engines of sealed, bpf, copier, unix; at least one`,
		"pipe: {engines: [bpf, bpf]}\n":    `f:1:23: pipe.engines names "bpf" twice`,
		"pipe: {per_container_share: 0}\n": `f:1:29: pipe.per_container_share is 0: want a whole number of percent, 1..100`,
		"pipe: {allow: all}\n":             `f:1:15: pipe.allow is "all": want a list of IPv4 networks such as [172.17.0.0/16], [] for none`,
		"log.level: info\n":                `f:1:1: unknown key "log.level": write "level" below "log"`,
		"startup:\n  pol: {}\n":            `f:2:3: unknown key "startup.pol": did you mean "startup.pool"?`,
		"warm_target: 5\n":                 `f:1:1: unknown key "warm_target": did you mean "startup.pool.warm_target"?`,
		"log: {level: inof}\n":             `f:1:14: log.level is "inof": want debug, info, warn or error: did you mean "info"?`,
		"log: {format: jsno}\n":            `f:1:15: log.format is "jsno": want text or json: did you mean "json"?`,
		"pipe:\n  allow:\n  - 10.0.0.0/8\n  - 10.0.0.1/9\n": `f:4:5: pipe.allow has "10.0.0.1/9": want a list of IPv4 networks such as [172.17.0.0/16], [] for none`,
		"startup:\n  pool:\n    maximum: 8\n":               `f:3:14: startup.pool.warm_target is 32: want at most startup.pool.maximum, which is 8`,
		"startup:\n  pool: {warm_target: 2}\n":              `f:2:23: startup.pool.minimum is 4: want at most startup.pool.warm_target, which is 2`,
		"startup:\n  pool:\n    memory_limit: 1MiB\n":       `f:3:19: startup.pool.memory_limit is 1MiB: startup.pool.warm_target namespaces alone take 8MiB`,
		"admit: 4\nlease: 2s\n":                             `f:2:8: lease is 2s: want a time with its unit, 10ms..1s`,
		"admit: 4\nadmit: 5\n":                              `f:2:1: mapping key "admit" already defined at [1:1]`,
		"admit: 1\n":                                        `f:1:8: admit is 1: want a whole number of packets, 2..65535`,
		"admit: 65536\n":                                    `f:1:8: admit is 65536: want a whole number of packets, 2..65535`,
		"admit: -4\n":                                       `f:1:8: admit is -4: want a whole number of packets, 2..65535`,
		"admit: 4.5\n":                                      `f:1:8: admit is 4.5: want a whole number of packets, 2..65535`,
		"admit: \"4\"\n":                                    `f:1:8: admit is "4": want a whole number of packets, 2..65535`,
		"admit: many\n":                                     `f:1:8: admit is "many": want a whole number of packets, 2..65535`,
		"admit: [4]\n":                                      `f:1:8: admit is a list: want a whole number of packets, 2..65535`,
		"admit: {a: 4}\n":                                   `f:1:8: admit is a mapping: want a whole number of packets, 2..65535`,
		"admit: 99999999999999999999\n":                     `f:1:8: admit is "99999999999999999999": want a whole number of packets, 2..65535`,
		"admit: 18446744073709551615\n":                     `f:1:8: admit is 18446744073709551615: want a whole number of packets, 2..65535`,
		"connections: 63\n":                                 `f:1:14: connections is 63: want a whole number of connections, 64..1048576`,
		"per_container_share: 0\n":                          `f:1:22: per_container_share is 0: want a whole number of percent, 1..100`,
		"lease_packets: 15\n":                               `f:1:16: lease_packets is 15: want a whole number of packets, 16..16777216`,
		"lease: 1\n":                                        `f:1:8: lease is 1: want a time with its unit, 10ms..1s`,
		"lease: 1x\n":                                       `f:1:8: lease is "1x": want a time with its unit, 10ms..1s`,
		"lease_max: 11m\n":                                  `f:1:12: lease_max is 11m0s: want a time with its unit, 10ms..10m0s`,
		"lease_max: 30\n":                                   `f:1:12: lease_max is 30: want a time with its unit, 10ms..10m0s`,
		"flush_idle: 999ms\n":                               `f:1:13: flush_idle is 999ms: want a time with its unit, 1s..1h0m0s`,
		"bridges: docker0\n":                                `f:1:10: bridges is "docker0": want auto or a list of device names such as [docker0]`,
		"bridges: [1]\n":                                    `f:1:11: bridges has 1: want auto or a list of device names such as [docker0]`,
		"bridges: []\n":                                     `f:1:10: bridges names no device: want auto or names such as [docker0]`,
		"bridges: [a, a]\n":                                 `f:1:14: bridges names the device "a" twice`,
		"uplinks: [a/b]\n":                                  `f:1:11: uplinks names the device "a/b": want auto or device names of 1..15 bytes without '/', ':' and blanks`,
		"uplinks: [abcdefghijklmnop]\n":                     `f:1:11: uplinks names the device "abcdefghijklmnop": want auto or device names of 1..15 bytes without '/', ':' and blanks`,
		"log: info\n":                                       `f:1:6: log is "info": want ` + "`key: value`" + ` lines`,
		"log: {level: loud}\n":                              `f:1:14: log.level is "loud": want debug, info, warn or error`,
		"log: {format: xml}\n":                              `f:1:15: log.format is "xml": want text or json`,
		"exact_counters: all\n":                             `f:1:17: exact_counters is "all": want a list of names of counters, or comments of rules or chains, such as [billing]; [] for none`,
		"exact_counters: [7]\n":                             `f:1:18: exact_counters has 7: want a list of names of counters, or comments of rules or chains, such as [billing]; [] for none`,
		"exact_counters: [\"\"]\n":                          `f:1:18: exact_counters has an empty name: want a list of names of counters, or comments of rules or chains, such as [billing]; [] for none`,
		"exact_counters: [a, b, a]\n":                       `f:1:24: exact_counters names "a" twice`,
		"exact_counters: [\"a\\nb\"]\n":                     `f:1:18: exact_counters has the name "a\nb": want printable characters`,
		"metrics: 9477\n":                                   `f:1:10: metrics is 9477: want an IP address and a port such as 127.0.0.1:9477, or "" for none`,
		"metrics: localhost:9477\n":                         `f:1:10: metrics is "localhost:9477": want an IP address and a port such as 127.0.0.1:9477, or "" for none`,
		"metrics: 127.0.0.1:0\n":                            `f:1:10: metrics is "127.0.0.1:0": want an IP address and a port such as 127.0.0.1:9477, or "" for none`,
		"health: 0.0.0.0:9480\n":                            `f:1:9: health is "0.0.0.0:9480": want a loopback address and a port such as 127.0.0.1:9480, or "" for none`,
		"health: 10.0.0.1:9480\n":                           `f:1:9: health is "10.0.0.1:9480": want a loopback address and a port such as 127.0.0.1:9480, or "" for none`,
		"web: gateway.lan:9478\n":                           `f:1:6: web is "gateway.lan:9478": want an IP address and a port such as 127.0.0.1:9478, the path of a unix socket, or "" for none`,
		"web: run/web.sock\n":                               `f:1:6: web is "run/web.sock": want an IP address and a port such as 127.0.0.1:9478, the path of a unix socket, or "" for none`,
		"metrics: 127.0.0.1\n":                              `f:1:10: metrics is "127.0.0.1": want an IP address and a port such as 127.0.0.1:9477, or "" for none`,
		"socket_group: 4\n":                                 `f:1:15: socket_group is 4: want a group's name, or "" for root only`,
		"socket_group: a b\n":                               `f:1:15: socket_group is "a b": want a group's name, or "" for root only`,
		"- admit\n":                                         `f:1:1: the file is a list: want ` + "`key: value`" + ` lines`,
		"admit: 4\n---\nadmit: 5\n":                         `f:3:6: begins a second document: want one`,
		"admit: [\n":                                        `f:1:8: sequence end token ']' not found`,
		"<<: {admit: 4}\n":                                  `f:1:1: unknown key "<<"`,
		strings.Repeat("# long\n", 1<<16):                   `f: is larger than 262144 bytes: not a configuration of scon`,
	} {
		_, err := config.Read("f", strings.NewReader(content))
		if err == nil {
			t.Errorf("%.40q was taken, want %q", content, want)
		} else if err.Error() != want {
			t.Errorf("%.40q\n got %s\nwant %s", content, err, want)
		}
	}
}

func TestReadRefusesEmptyValues(t *testing.T) {
	for _, key := range config.Names() {
		var content string
		for i, word := range strings.Split(key, ".") {
			content += strings.Repeat("  ", i) + word + ":\n"
		}
		_, err := config.Read("f", strings.NewReader(content))
		if err == nil || !strings.Contains(err.Error(), key+" is empty: want ") {
			t.Errorf("%q: got error %v", content, err)
		}
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "scon.yaml"))
	if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "read config: open /") {
		t.Errorf("got %v", err)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	c := config.Default()
	c.FlushIdle = 0
	var e *config.ValueError
	if err := c.Validate(); !errors.As(err, &e) || e.Key != "flush_idle" {
		t.Errorf("got %v", err)
	}
}

func TestParseDevices(t *testing.T) {
	for s, want := range map[string]config.Devices{
		"auto":    nil,
		"eth0":    {"eth0"},
		"a,b,c-d": {"a", "b", "c-d"},
	} {
		got, err := config.ParseDevices(s)
		if err != nil || check.Diff(got, want) != "" || got.String() != s {
			t.Errorf("%q: got %#v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", ",", "a,,b", "a,a", "a b", "..", "a/b"} {
		if got, err := config.ParseDevices(s); err == nil {
			t.Errorf("%q was taken: %#v", s, got)
		}
	}
}

// FuzzRead checks that accepted settings are valid, and that nothing panics.
func FuzzRead(f *testing.F) {
	content, err := os.ReadFile(shipped)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Add([]byte("a: &x [*x]\nlog: {level: !!str info}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := config.Read("f", bytes.NewReader(content))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("the error does not begin with the place: %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%q was taken: %v", content, err)
		}
	})
}

// FuzzParseDevices checks that accepted devices parse to the same value when printed, and
// are valid in a file, too.
func FuzzParseDevices(f *testing.F) {
	for _, s := range []string{"auto", "docker0,br-lan", "", "a,,b", "a,a", "auto,a", "1e3", "null", "\"", "[a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := config.ParseDevices(s)
		if err != nil {
			return
		}
		if d.String() != s {
			t.Errorf("%q reads %q", s, d)
		}
		c := config.Default()
		c.Bridges = d
		if err := c.Validate(); err != nil {
			t.Errorf("%q was taken: %v", s, err)
		}
	})
}

func TestRegular(t *testing.T) {
	for content, want := range map[string]string{
		"eth1":              "want a list of devices",
		"[name=]":           "has \"name=\"",
		"[label=]":          "has \"label=\"",
		"[label==x]":        "has \"label==x\"",
		"[image=nginx]":     "has \"image=nginx\"",
		"[a/b]":             "has \"a/b\"",
		"[eth1, eth1]":      "names \"eth1\" twice",
		"[\"\"]":            "has \"\"",
		"[name=a, label=b]": "",
	} {
		_, err := config.Read("f", strings.NewReader("regular: "+content+"\n"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", content, err, want)
		}
	}
}

func TestStartupSettings(t *testing.T) {
	for want, content := range map[string]string{
		"want true or false":                         "enabled: yes-please",
		"want a list of absolute paths":              "networks: [net.conf]",
		"want a whole number with KiB, MiB or GiB":   "pool: {memory_limit: 128}",
		"is 512KiB: want":                            "pool: {memory_limit: 512KiB}",
		"want a time with its unit, 1s..1h":          "pool: {cooldown: 1ms}",
		"want a whole number of namespaces, 0..4096": "pool: {warm_target: 5000}",
		"want a whole number of containers, 0..4096": "limits: {cgroup: -1}",
		"startup.env_networks is 1":                  "env_networks: 1",
		"startup.env_networks names \"a\" twice":     "env_networks: [a, a]",
		"startup.env_networks has an empty name":     "env_networks: [\"\"]",
		"unknown key \"startup.pool.target\"":        "pool: {target: 1}",
		"want an absolute path":                      "stage_log: log",
	} {
		_, err := config.Read("f", strings.NewReader("startup:\n  "+content+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", content, err, want)
		}
	}
	for want, pool := range map[string]config.Pool{
		"startup.pool.warm_target is 9: want at most startup.pool.maximum": {WarmTarget: 9, Maximum: 8, MemoryLimit: 1 << 30, Cooldown: time.Second},
		"startup.pool.minimum is 9: want at most startup.pool.warm_target": {WarmTarget: 8, Minimum: 9, Maximum: 8, MemoryLimit: 1 << 30, Cooldown: time.Second},
		"namespaces alone take": {WarmTarget: 8, Maximum: 8, MemoryLimit: 1 << 20, Cooldown: time.Second},
	} {
		c := config.Default()
		c.Startup.Pool = pool
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", pool, err, want)
		}
	}
}
