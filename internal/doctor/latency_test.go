package doctor

import (
	"strings"
	"testing"
)

// The paper's host, and one as it comes.
func TestLatency(t *testing.T) {
	paper := map[string]string{
		"/proc/version":                                         "Linux version 5.10.0-rt #1 SMP PREEMPT_RT Debian",
		"/proc/cmdline":                                         "quiet idle=poll rcu_nocbs=1-31 irqaffinity=0 nosmt",
		"/proc/irq/default_smp_affinity":                        "1",
		"/sys/devices/system/cpu/online":                        "0-31",
		"/sys/devices/system/cpu/isolated":                      "",
		"/sys/devices/system/cpu/smt/active":                    "0",
		"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
		"/sys/devices/system/cpu/cpu0/cpuidle/state0/latency":   "0",
		"/sys/devices/system/cpu/cpu0/cpuidle/state0/disable":   "0",
		"/sys/devices/system/cpu/cpu0/cpuidle/state2/latency":   "400",
		"/sys/devices/system/cpu/cpu0/cpuidle/state2/disable":   "1",
		"/sys/fs/cgroup/system.slice/cpuset.cpus.effective":     "0",
		"/sys/fs/cgroup/user.slice/cpuset.cpus.effective":       "0",
		"/sys/class/net/eth0/device/class":                      "0x020000",
		"/sys/class/net/eth0/queues/rx-0/rps_cpus":              "0",
		"/var/lib/scon/pin.json":                                "{}",
		"/proc/1/comm":                                          "systemd",
	}
	for _, p := range latencyOf(fixture(t, paper)).Preparations {
		if p.Level != ok || p.Seen == "" || p.Paper == "" {
			t.Errorf("the paper's host: %+v", p)
		}
	}

	usual := map[string]string{
		"/proc/version":                                         "Linux version 6.1.0 #1 SMP PREEMPT_DYNAMIC Debian",
		"/proc/cmdline":                                         "quiet",
		"/proc/irq/default_smp_affinity":                        "f",
		"/sys/devices/system/cpu/online":                        "0-3",
		"/sys/devices/system/cpu/isolated":                      "3",
		"/sys/devices/system/cpu/smt/active":                    "1",
		"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
		"/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
		"/sys/devices/system/cpu/cpu0/cpuidle/state2/name":      "C6",
		"/sys/devices/system/cpu/cpu0/cpuidle/state2/latency":   "400",
		"/sys/devices/system/cpu/cpu0/cpuidle/state2/disable":   "0",
		"/sys/fs/cgroup/system.slice/cpuset.cpus.effective":     "0-3",
		"/sys/class/net/eth0/device/class":                      "0x020000",
		"/sys/class/net/eth0/queues/rx-0/rps_cpus":              "0",
		"/sys/class/net/eth0/queues/rx-1/rps_cpus":              "3",
		"/sys/class/net/eth0/threaded":                          "1",
		"/proc/2/comm":                                          "irqbalance",
		"/proc/3/comm":                                          "rsyslogd",
	}
	found := map[string]string{
		"real-time kernel": "PREEMPT_DYNAMIC",
		"sleep states":     "used: C6 (400 us)",
		"governor":         "powersave",
		"logging":          "running: rsyslogd",
		"slices":           "system.slice: all CPUs",
		"isolated CPUs":    "isolated 3: scon pin places no work there",
		"queues":           "eth0 has 2",
		"packet steering":  "RPS at eth0",
		"polling threads":  "eth0",
	}
	for _, p := range latencyOf(fixture(t, usual)).Preparations {
		if p.Level != note || p.Remedy == "" && p.Name != "isolated CPUs" {
			t.Errorf("a usual host: %+v", p)
		}
		if want := found[p.Name]; want != "" && p.Found != want {
			t.Errorf("%s: found %q, want %q", p.Name, p.Found, want)
		}
	}

	// An empty machine has no finding.
	for _, p := range latencyOf(fixture(t, nil)).Preparations {
		if p.Level == note && !strings.HasPrefix(p.Found, "not pinned") {
			t.Errorf("an empty machine: %+v", p)
		}
	}
}

// The doctor quotes no other machine; it names what measures on this one.
func TestMeasured(t *testing.T) {
	for _, p := range latencyOf(fixture(t, nil)).Preparations {
		want := "not measured here"
		switch p.Name {
		case "sleep states", "governor":
			want += ": 'scon pin advise' tries --power"
		case "packet steering":
			want += ": 'scon pin advise' tries --steer rps"
		case "polling threads":
			want += ": 'scon pin advise' tries --steer threaded"
		}
		if p.Seen != want {
			t.Errorf("%s: %q, want %q", p.Name, p.Seen, want)
		}
	}
}
