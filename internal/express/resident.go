package express

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dropProgramPages gives back the pages of the program itself, which it has
// just started from: most of them will not be needed again, and those that are
// come back from the page cache.
func dropProgramPages() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if !strings.HasSuffix(lines.Text(), " "+program) {
			continue
		}
		var from, to uintptr
		var access string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &access); err != nil {
			return fmt.Errorf("reading /proc/self/maps: %q: %w", lines.Text(), err)
		}
		if strings.Contains(access, "w") {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("giving back the program's pages: %w", errno)
		}
	}
	return lines.Err()
}
