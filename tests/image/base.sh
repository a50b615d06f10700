#!/bin/sh
# A base image named as the shipped Dockerfiles name theirs, made of Debian packages, since no image can be pulled here:
#   base.sh NAME[:TAG] FOLDER
# Mirror: DEBIAN_MIRROR, else the one that this machine's apt uses.
set -eu
name=$1 folder=$2
podman image exists "localhost/$name" && exit 0
mirror=${DEBIAN_MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null \
    | awk '/^(deb |URIs:)/ { for (i = 1; i <= NF; i++) if ($i ~ /^http/) { print $i; exit } }')}
mkdir -p "$folder"
root=$folder/rootfs
[ -e "$root/.complete" ] || {
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$root" "$mirror" \
        >"$folder/debootstrap.log" 2>&1 || { tail -5 "$folder/debootstrap.log" >&2; exit 1; }
    ln -sf python3 "$root/usr/bin/python"
    rm -rf "$root/var/cache/apt/archives/"*.deb "$root/var/lib/apt/lists/"*
    touch "$root/.complete"
}
tar -C "$root" -c . | podman import -q - "localhost/$name" >/dev/null
