#!/bin/bash
echo 'exec tac' > reverse.sh
