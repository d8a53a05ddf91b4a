# Makes reports of a service that systemd runs: as root, and as an ordinary user.
mkdir -p /etc/systemd/system/scon.service.d
printf '[Service]\nExecStartPre=echo "password=hunter2 of Mrs Smith at 203.0.113.77"\n' >/etc/systemd/system/scon.service.d/secret.conf
systemctl daemon-reload
ip link add docker0 type bridge
ip link set docker0 up
systemctl start scon || { journalctl --unit scon --output cat --no-pager; exit 1; }
journalctl --unit scon --output cat --no-pager | grep -c 'hunter2 of Mrs Smith'

# report COMMAND makes one and unpacks it; counts the files with secrets, and says whose it is.
report() {
	cd /tmp
	"$@" 2>/dev/null >/tmp/said || echo "exit status $?"
	rm -rf /tmp/unpacked
	mkdir /tmp/unpacked
	tar -xzf /tmp/report.tar.gz -C /tmp/unpacked
	cd /tmp/unpacked/scon-report
	echo "secrets: $(grep -ril 'hunter2\|smith\|203\.0\.113' . | wc -l)"
	stat -c 'mode %a of %u' /tmp/report.tar.gz
	rm /tmp/report.tar.gz
}

echo '= root'
report scon report --output /tmp/report.tar.gz
grep '^Missing' /tmp/said
grep -c 'permission denied\|must be root' /tmp/said
grep -h '^ActiveState\|^UnitFileState\|^it answers' express/service.txt | sed 's/pid.*/.../'
grep -q '^thread .* waits in [a-z_]*futex' express/service.txt && echo 'threads: where they wait'
sed -n 's/^[^ ]* //; s/\[[0-9]*\]//; s/time=[^ ]* //; /^systemd: Start\|msg="SCON is up"/p' express/log.txt | sort
grep -c 'echo.*=name-[0-9]* of name' express/log.txt
ls express

echo '= user'
report setpriv --reuid 65534 --regid 65534 --clear-groups scon report --output /tmp/report.tar.gz
sed -n '/^Missing/p; /read state/p; /scon.sock/p; /the journal/p; /must be root/{s/:.*(/: (/p}' /tmp/said
ls express
cd /etc
setpriv --reuid 65534 --regid 65534 --clear-groups scon report 2>&1 >/dev/null | sed -n 's/^scon: //; s/report-[0-9]*/report-/p'
