#!/bin/busybox sh
# The initramfs: loads what the root needs, stacks tmpfs over tools over the host's root, and hands over to stage 2.
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
case "$($B cat /proc/cmdline)" in *lab.probe*) echo "lab: the kernel is up"; $B poweroff -f;; esac
for m in $($B cat /m/order); do $B insmod /m/$m || echo "lab: insmod $m failed" >/dev/kmsg; done
die() { echo "lab: $*" >/dev/kmsg; $B poweroff -f; $B sleep 60; }
P=trans=virtio,version=9p2000.L,msize=512000
$B mount -t 9p -o $P,rw,cache=none control /control || die "no control share"
# PROJECT, MODULES, TOOLS: directories of the host.
. /control/config
$B mount -t 9p -o $P,ro,cache=loose root /lower || die "no root share"
# A lower directory inside another one is refused (ELOOP): the tools are a share of their own.
$B mount -t 9p -o $P,ro,cache=loose tools /tools || die "no tools share"
$B mount -t tmpfs tmpfs /upper; $B mkdir -p /upper/changes /upper/work
$B mount -t overlay -o lowerdir=/tools:/lower,upperdir=/upper/changes,workdir=/upper/work overlay /new || die "no overlay"
for d in proc sys dev; do $B mount --move /$d /new/$d; done
$B mkdir -p /new/dev/shm /new/dev/pts /new/dev/hugepages
for d in dev/shm run tmp; do $B mount -t tmpfs tmpfs /new/$d; done
$B mount -t devpts devpts /new/dev/pts
$B mkdir -p /new/run/lab; $B mount --move /control /new/run/lab
$B mkdir -p "/new$PROJECT"; $B mount -t 9p -o $P,rw,cache=loose project "/new$PROJECT" || die "no project share"
V=$($B uname -r)
$B mkdir -p /new/usr/lib/modules/$V; $B mount --bind "/lower$MODULES/lib/modules/$V" /new/usr/lib/modules/$V || die "no modules"
$B mkdir -p /new/boot; $B cp "/lower$MODULES/config" /new/boot/config-$V
exec $B switch_root /new /bin/bash /run/lab/stage2.sh
