package main

import "testing"

func TestShare(t *testing.T) {
	for _, c := range []struct {
		part, rest uint64
		want       string
	}{
		{0, 0, "-"},
		{0, 5, "░░░░░░░░░░   0%"},
		{999, 1, "█████████░  99%"}, // 100% is printed only for all
		{5, 0, "██████████ 100%"},
		{1, 1, "█████░░░░░  50%"},
		{1 << 63, 1 << 63, "█████░░░░░  50%"},
	} {
		if got := share(c.part, c.rest); got != c.want {
			t.Errorf("share(%d, %d) = %q, want %q", c.part, c.rest, got, c.want)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB",
		1_234_567: "1.2 MB", 1 << 40: "1.1 TB", 1<<64 - 1: "18.4 EB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("bytesText(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestMillis(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0s", 730: "730ms", 1234: "1.234s", 12_345: "12.3s", 61_500: "1m1s", 90_061_000: "25h1m1s",
	} {
		if got := millis(ms); got != want {
			t.Errorf("millis(%d) = %q, want %q", ms, got, want)
		}
	}
}

func TestMostFirst(t *testing.T) {
	got := mostFirst(map[string]uint64{"syn": 2, "new": 30, "ttl": 0, "mtu": 2})
	if want := "new 30, mtu 2, syn 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := mostFirst(nil); got != "" {
		t.Errorf("nothing is %q", got)
	}
}
