#!/bin/bash
sed -i 's/ + 2/ * 2/' double.sh
