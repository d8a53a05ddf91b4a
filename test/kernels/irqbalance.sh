# irqbalance under systemd: it does not move interrupts that scon pin has set, and its
# settings are restored afterwards. Prints a line for each step.
set -e
PATH=/opt:$PATH

arguments() {
	tr '\0' ' ' <"/proc/$(systemctl show --property MainPID --value irqbalance)/cmdline"
	echo
}
placed() { for irq in $vectors; do cat "/proc/irq/$irq/smp_affinity_list"; done | sort -u; }

modprobe virtio_net
ip link set eth0 up
vectors=$(ls /sys/class/net/eth0/device/../msi_irqs)
echo 'IRQBALANCE_ARGS="--powerthresh=1"' >/etc/default/irqbalance
cp /etc/default/irqbalance /tmp/before
systemctl start irqbalance
echo "before: $(arguments)"

scon pin apply --policy single >/dev/null
echo "applied: $(arguments | sed 's/banirq=[0-9]*/banirq=N/g')"
# Two rounds of irqbalance.
sleep 21
echo "placed on: $(placed)"
scon pin status --json | grep '"differs": 0'

scon pin restore
echo "restored: $(arguments)"
cmp /etc/default/irqbalance /tmp/before && echo 'as before'
