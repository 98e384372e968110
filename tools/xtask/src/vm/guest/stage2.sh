# The guest's first process: sets up what the tests rely on, runs the command, leaves its exit code, powers off.
# Read whole before it runs: at the end there is no file system to read from.
main() {
    C=/run/lab
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
    . $C/config
    # On a busy host the kernel may measure a sixth of its clock's true rate: every time-out would come six times too early.
    if dmesg | grep -q 'calibration deviates from HPET'; then
        dmesg >$C/dmesg; echo o >/proc/sysrq-trigger; while :; do :; done
    fi
    mount -t cgroup2 cgroup /sys/fs/cgroup; mount -t debugfs debug /sys/kernel/debug; mount -t tracefs trace /sys/kernel/tracing 2>/dev/null
    mount -t bpf bpf /sys/fs/bpf; mount -t configfs config /sys/kernel/config 2>/dev/null; mount -t hugetlbfs huge /dev/hugepages
    mkdir -p /run/netns /run/lock; ulimit -l unlimited; hostname lab
    # What udev would load. rxe needs a CRC its module does not name.
    modprobe -abq $(cat /sys/bus/{pci,virtio,cpu}/devices/*/modalias 2>/dev/null | sort -u) crc32_generic crc32-pclmul crc32c-intel 2>/dev/null
    if [ -n "$PAIR" ]; then
        mkdir -p /run/pair; mount -t 9p -o trans=virtio,version=9p2000.L,rw,cache=none pair /run/pair
    fi
    ip link set lo up
    for entry in $NETWORK; do  # 52:54:00:ba:51:00=10.0.2.15/24+fd00::2/64
        device=$(basename "$(dirname "$(grep -l "${entry%%=*}" /sys/class/net/*/address)")")
        for address in $(echo "${entry#*=}" | tr + ' '); do
            case $address in *:*) nodad=nodad ;; *) nodad= ;; esac
            ip address add $address dev $device $nodad
        done
        ip link set $device up
        # The first interface carries the RDMA device.
        [ -n "$RXE" ] && { modprobe -aq rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev $device; RXE=; }
    done
    # Namespaces appear some time after their driver.
    for _ in $(seq 100); do [ $(ls -d /dev/ng[0-9]*n[0-9]* 2>/dev/null | wc -l) -ge ${NAMESPACES:-0} ] && break; sleep 0.1; done

    port=$(ls /dev/vport*p* 2>/dev/null | head -1)
    # Through a pipe: the port can be opened only once, and programs open /dev/stderr.
    mkfifo /run/output /run/end; cat /run/output >${port:-/dev/ttyS0} & relay=$!
    # While this counts, the guest is alive, whatever the command does.
    mkfifo /run/pulse; (exec 8<>/run/pulse; while :; do echo $((n += 1)) >$C/pulse; read -t 5 -u 8; done) & pulse=$!
    : >$C/started
    (
        set -a; . $C/environment; set +a
        cd "$DIRECTORY" 2>/dev/null || cd /
        exec setsid bash $C/command
    ) </dev/null >/run/output 2>&1
    code=$?
    # What the command left running may hold the pipe open.
    for _ in $(seq 20); do kill -0 $relay 2>/dev/null || break; sleep 0.1; done
    kill $pulse
    dmesg >$C/dmesg
    echo $code >$C/code
    sync
    # Only what the shell itself can do from here on: the shares go before the power does.
    exec 9<>/run/end
    echo o >/proc/sysrq-trigger
    read -t 60 -u 9
}
main
