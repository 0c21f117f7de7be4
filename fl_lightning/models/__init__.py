"""Models of the experiments: ordinary LightningModules, with nothing federated inside."""

from __future__ import annotations

from fl_lightning.models.char_lstm import CharLSTM
from fl_lightning.models.classifier import Classifier
from fl_lightning.models.convnet import ConvNetClassifier
from fl_lightning.models.cox import CoxRegression
from fl_lightning.models.logistic import LogisticRegressionClassifier
from fl_lightning.models.lora import add_lora
from fl_lightning.models.mlp import MLPClassifier
from fl_lightning.models.mobilenet import MobileNetV2Classifier
from fl_lightning.models.resnet import ResNet18Classifier
from fl_lightning.models.vgg9 import VGG9Classifier

__all__ = [
    "CharLSTM",
    "Classifier",
    "ConvNetClassifier",
    "CoxRegression",
    "LogisticRegressionClassifier",
    "MLPClassifier",
    "MobileNetV2Classifier",
    "ResNet18Classifier",
    "VGG9Classifier",
    "add_lora",
]
