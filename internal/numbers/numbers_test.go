package numbers

import (
	"math"
	"testing"
)

func TestCount(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0", 0.01: "<0.1", 0.05: "0.1", 0.3: "0.3", 5: "5", 9.94: "9.9", 9.96: "10", 12.4: "12", 999: "999", 999.5: "1.0k",
		1234: "1.2k", 35_400: "35.4k", 99_949: "99.9k", 99_950: "100k", 999_499: "999k", 999_500: "1.0M", math.MaxUint64: "18.4E",
	} {
		if got := Count(n); got != want {
			t.Errorf("Count(%v) = %q, want %q", n, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1_234_567: "1.2 MB", 38_600_000: "38.6 MB", 340e9: "340 GB", 1 << 40: "1.1 TB",
		math.MaxUint64: "18.4 EB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%v) = %q, want %q", n, got, want)
		}
	}
}

// Nothing but all is 100 %, nothing but none is 0 %, and the last percent is not lost.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		part, rest float64
		want       string
	}{
		{0, 0, "-"}, {0, 5, "0 %"}, {5, 0, "100 %"}, {1, 1e9, "<0.1 %"}, {1, 1999, "0.1 %"}, {94, 9906, "0.9 %"}, {96, 9904, "1 %"},
		{1, 1, "50 %"}, {93, 7, "93 %"}, {9894, 106, "99 %"}, {99, 1, "99.0 %"}, {9986, 14, "99.9 %"}, {1e9, 1, "99.9 %"},
	} {
		if got := Share(c.part, c.rest); got != c.want {
			t.Errorf("Share(%v, %v) = %q, want %q", c.part, c.rest, got, c.want)
		}
	}
	if got := Share[uint64](1<<63, 1<<63); got != "50 %" {
		t.Errorf("a half of the largest counters is %q", got)
	}
}

func TestMillis(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0 ms", 730: "730 ms", 1234: "1.2 s", 59_999: "59.9 s", 60_000: "1.0 min", 61_500: "1.0 min", 3_600_000: "1.0 h",
		90_061_000: "25.0 h", 276_480_000: "3.2 d", 100 * 86_400_000: "100 d",
	} {
		if got := Millis(ms); got != want {
			t.Errorf("Millis(%d) = %q, want %q", ms, got, want)
		}
	}
}

func TestOften(t *testing.T) {
	for rate, want := range map[float64]string{0.026: "one in 38.4 s", 0.99: "one in 1.0 s", 1: "1 a second", 16.4: "16 a second", 2540: "2.5k a second"} {
		if got := Often(rate); got != want {
			t.Errorf("%v: %q, want %q", rate, got, want)
		}
	}
}
