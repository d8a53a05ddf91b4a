#!/bin/sh
# Runs the command, tells what became of it and ends the guest. Marks: see
# console.go.

printf '\n=== output\n'
setsid sh /command </dev/null 2>&1
status=$?
kill -9 -1 # whoever could still print
printf '\n=== exit %s\n' $status
dmesg | grep -A 30 -E 'WARNING:|BUG:|Oops|general protection|refcount_t'
printf '\n=== end\n'
sync
poweroff -f
