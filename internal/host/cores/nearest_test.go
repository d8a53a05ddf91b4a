package cores

import (
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// fourCPUs are two pairs, each with a last cache of its own.
var fourCPUs = func() fstest.MapFS {
	files := fstest.MapFS{"cpufreq/x": {}, "cpu0/cache/index0/level": {Data: []byte("1\n")}, "cpu0/cache/index0/shared_cpu_list": {Data: []byte("0\n")}}
	for cpu, shared := range map[string]string{"cpu0": "0-1\n", "cpu1": "0-1\n", "cpu2": "2-3\n", "cpu3": "2-3\n"} {
		index := "/cache/index0/"
		if cpu == "cpu0" {
			index = "/cache/index1/"
		}
		files[cpu+index+"level"] = &fstest.MapFile{Data: []byte("3\n")}
		files[cpu+index+"shared_cpu_list"] = &fstest.MapFile{Data: []byte(shared)}
	}
	return files
}()

func TestNearest(t *testing.T) {
	four := lastCaches(fourCPUs)
	if len(four) != 4 || four[0] != "0-1" || four[3] != "2-3" {
		t.Fatal(four)
	}
	for _, c := range []struct {
		a, b  []int
		group map[int]string
		want  [2]int
	}{
		{[]int{0}, []int{1}, four, [2]int{0, 1}},
		{[]int{0}, []int{2}, four, [2]int{0, 2}},
		{[]int{0}, []int{2, 1}, four, [2]int{0, 1}},
		{[]int{0, 1, 2, 3}, []int{0, 1, 2, 3}, four, [2]int{1, 0}},
		{[]int{0, 2, 3}, []int{3}, four, [2]int{2, 3}},
		{[]int{1}, []int{1}, four, [2]int{1, 1}},
		{[]int{0, 1}, []int{0}, nil, [2]int{1, 0}},
		{nil, []int{0}, four, [2]int{0, 0}},
	} {
		a, b := nearest(c.a, c.b, c.group)
		if [2]int{a, b} != c.want {
			t.Errorf("%v and %v: %d and %d, want %v", c.a, c.b, a, b, c.want)
		}
	}
	var set unix.CPUSet
	set.Set(3)
	set.Set(70)
	if all := members(&set); len(all) != 2 || all[0] != 3 || all[1] != 70 {
		t.Error(all)
	}
}
